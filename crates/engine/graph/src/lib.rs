//! The typed node graph: schema, descriptors, validation, order, cache keys and executor.
