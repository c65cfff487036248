"""Everything that is used of Ray and not part of its public interface, and what takes its place where it is missing."""
