//! Fast CPU kernels over plain slices, chosen at run time by instruction set; knows shapes, not models.
