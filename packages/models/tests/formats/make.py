"""Writes the classifiers beside it, the same one in each framework's own format; the tests only read what it wrote.

    python make.py tensorflow     # saved_model/, classifier.tflite and int8.tflite, made by TensorFlow 2.21
    python make.py integers       # bytes.tflite, int8_logits.tflite, int8_sigmoid.tflite: integers in and out
    python make.py keras          # keras_model/, by `export` of Keras 3.15 on TensorFlow 2.21
    python make.py paddle         # inference.pdmodel and inference.pdiparams, made by PaddlePaddle 3.3

Each takes float32 images of 8x8 pixels, normalizes nothing, and answers float32 [N,3] probabilities: a 3x3
convolution of stride 2 without padding, ReLU, the mean over the image, a matrix, softmax.
"""

import os
import sys
import traceback
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
FILTERS = 0.3 * np.sin(np.arange(3 * 3 * 3 * 4, dtype=np.float32)).reshape(3, 3, 3, 4)  # height, width, in, out
MATRIX = 2 * np.cos(np.arange(4 * 3, dtype=np.float32)).reshape(4, 3)


def tensorflow() -> None:
    import tensorflow as tf

    class Classifier(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 3], tf.float32, "image")])
        def __call__(self, image):
            features = tf.nn.relu(tf.nn.conv2d(image, FILTERS, 2, "VALID"))
            return tf.nn.softmax(tf.reduce_mean(features, [1, 2]) @ MATRIX)

    tf.saved_model.save(Classifier(), HERE / "saved_model")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(HERE / "saved_model"))
    (HERE / "classifier.tflite").write_bytes(converter.convert())
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    normalized = np.random.default_rng(0).uniform(-2.1, 2.6, (50, 1, 8, 8, 3)).astype(np.float32)
    converter.representative_dataset = lambda: ([image] for image in normalized)
    (HERE / "int8.tflite").write_bytes(converter.convert())


def integers() -> None:
    """Quantize fully, input and output, too: pixels from 0 to 1 as bytes, or as bytes less 128."""
    import tensorflow as tf

    heads = {
        "bytes": (tf.nn.softmax, tf.uint8),
        "int8_logits": (tf.identity, tf.int8),
        "int8_sigmoid": (tf.sigmoid, tf.int8),
    }
    for name, (head, kind) in heads.items():

        class Classifier(tf.Module):
            @tf.function(input_signature=[tf.TensorSpec([1, 8, 8, 3], tf.float32, "image")])
            def __call__(self, image, head=head):
                features = tf.nn.relu(tf.nn.conv2d(image, FILTERS, 2, "VALID"))
                return head(tf.reduce_mean(features, [1, 2]) @ MATRIX)

        tf.saved_model.save(Classifier(), folder := "/tmp/classifier")
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        pixels = np.random.default_rng(0).uniform(0, 1, (50, 1, 8, 8, 3)).astype(np.float32)
        converter.representative_dataset = lambda pixels=pixels: ([image] for image in pixels)
        converter.inference_input_type = converter.inference_output_type = kind
        (HERE / f"{name}.tflite").write_bytes(converter.convert())


def keras() -> None:
    from keras import Input, Sequential, layers

    kinds = [
        layers.Conv2D(4, 3, strides=2, use_bias=False, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(3, use_bias=False, activation="softmax"),
    ]
    model = Sequential([Input((8, 8, 3), name="image"), *kinds])
    model.set_weights([FILTERS, MATRIX])
    model.export(HERE / "keras_model")


def paddle() -> None:
    os.environ["FLAGS_enable_pir_api"] = "0"  # noqa: SIM112  # else it writes .json, which OpenVINO can't read
    import paddle
    from paddle.nn import functional

    class Classifier(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.convolution = paddle.nn.Conv2D(3, 4, 3, stride=2, bias_attr=False)
            self.convolution.weight.set_value(FILTERS.transpose(3, 2, 0, 1).copy())
            self.linear = paddle.nn.Linear(4, 3, bias_attr=False)
            self.linear.weight.set_value(MATRIX)

        def forward(self, image):
            return functional.softmax(self.linear(functional.relu(self.convolution(image)).mean(axis=[2, 3])))

    # Else the file names the folders of the machine that it was made on.
    traceback.extract_stack = lambda *_, **__: [traceback.FrameSummary(Path(__file__).name, 1, "paddle")] * 9
    signature = [paddle.static.InputSpec([-1, 3, 8, 8], "float32", "image")]
    paddle.jit.save(Classifier(), str(HERE / "inference"), input_spec=signature)
    (HERE / "inference.pdiparams.info").unlink()  # for training on


if __name__ == "__main__":
    {"tensorflow": tensorflow, "integers": integers, "keras": keras, "paddle": paddle}[sys.argv[1]]()
