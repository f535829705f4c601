//! The text contract: requests, stream events, descriptors and registries. No tensor library.
