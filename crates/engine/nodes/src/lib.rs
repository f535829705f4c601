//! Source nodes, primitives and one runner per model family.
