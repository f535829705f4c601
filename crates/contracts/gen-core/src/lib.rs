//! The media contract: requests, descriptors, component traits and the provider registry. No tensor library.
