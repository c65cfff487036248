"""System shared memory, an extension of the Open Inference Protocol."""
