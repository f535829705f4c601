//! The Z-Image family: descriptor, model, pipeline data and registration.
