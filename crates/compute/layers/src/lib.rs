//! Building blocks that models are written in: linear, norms, rope, attention, convolution, VAE blocks, text encoders.
