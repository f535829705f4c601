use half::bf16;

use super::*;
use crate::ctx::test_support::{contexts, noise, relative_error};
use crate::isa::Isa;

/// Convolution of NCHW data in f64.
fn reference(x: &[f32], w: &[f32], bias: &[f32], from: ImageShape, shape: ConvShape) -> Vec<f32> {
    let (height, width, kernel) = (shape.length(from.height), shape.length(from.width), shape.kernel);
    let mut out = Vec::new();
    for b in 0..from.batch {
        for o in 0..shape.outputs {
            for (y, x0) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                let mut sum = f64::from(bias[o]);
                for c in 0..shape.inputs {
                    for (ky, kx) in (0..kernel).flat_map(|ky| (0..kernel).map(move |kx| (ky, kx))) {
                        let (iy, ix) = (y * shape.stride + ky, x0 * shape.stride + kx);
                        let inside = |i: usize, size: usize| i >= shape.before && i - shape.before < size;
                        if inside(iy, from.height) && inside(ix, from.width) {
                            let (iy, ix) = (iy - shape.before, ix - shape.before);
                            let x = x[((b * shape.inputs + c) * from.height + iy) * from.width + ix];
                            sum += f64::from(x) * f64::from(w[((o * shape.inputs + c) * kernel + ky) * kernel + kx]);
                        }
                    }
                }
                out.push(sum as f32);
            }
        }
    }
    out
}

fn doubled(x: &[f32], shape: ImageShape) -> (Vec<f32>, ImageShape) {
    let to = ImageShape { height: 2 * shape.height, width: 2 * shape.width, ..shape };
    let planes = shape.batch * shape.channels;
    let mut out = Vec::new();
    for (plane, y) in (0..planes).flat_map(|plane| (0..to.height).map(move |y| (plane, y))) {
        out.extend((0..to.width).map(|i| x[(plane * shape.height + y / 2) * shape.width + i / 2]));
    }
    (out, to)
}

/// Every instruction set and element type, with an image that held something larger before.
fn check(conv: impl Fn(&Ctx, WeightFormat) -> Conv2d, x: &[f32], from: ImageShape, want: &[f32], bf16_limit: f32) {
    for ctx in contexts() {
        for (format, half, limit) in [(WeightFormat::F32, false, 2e-6), (WeightFormat::Bf16, true, bf16_limit)] {
            let conv = conv(&ctx, format);
            let image = Image::from_nchw(&ctx, x.into(), from, half).unwrap();
            let to = conv.output_shape(from);
            let (height, width) = (to.height + 3, to.width + 1);
            let old = ImageShape { height, width, channels: to.channels + 40, ..to };
            let mut out = Image::from_nchw(&ctx, (&vec![7f32; old.elements()]).into(), old, false).unwrap();
            conv.forward(&ctx, &image, &mut out, ConvEpilogue::default()).unwrap();
            let mut got = vec![0f32; to.elements()];
            out.to_nchw(&ctx, (&mut got).into()).unwrap();
            let error = relative_error(&got, want);
            assert!(error < limit, "{} {format:?} {from:?} {:?}: {error}", ctx.isa(), conv.shape);
            let Values::F32(all) = out.values() else { unreachable!() };
            let inside: f64 = got.iter().map(|&x| f64::from(x.abs())).sum();
            let total: f64 = all[..to.batch * to.picture()].iter().map(|&x| f64::from(x.abs())).sum();
            assert!((inside - total).abs() <= 1e-6 * total, "border and padding stay zero");
        }
    }
}

fn rounded(values: Vec<f32>) -> Vec<f32> {
    values.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
}

#[test]
fn every_instruction_set_agrees_with_f64() {
    for (batch, height, width, inputs, outputs, kernel, stride, before, after) in [
        (1, 1, 1, 1, 1, 3, 1, 1, 1),
        (2, 5, 7, 3, 5, 3, 1, 1, 1),
        (1, 4, 40, 40, 33, 3, 1, 1, 1),
        (1, 9, 18, 33, 7, 3, 2, 0, 1),
        (2, 6, 17, 5, 70, 3, 2, 1, 1),
        (1, 3, 33, 64, 40, 1, 1, 0, 0),
        (1, 3, 3, 300, 300, 3, 1, 1, 1),
        (1, 2, 5, 4, 4, 3, 1, 0, 0),
        (1, 5, 6, 4, 4, 3, 1, 0, 0),
    ] {
        let from = ImageShape { batch, height, width, channels: inputs };
        let shape = ConvShape { inputs, outputs, kernel, stride, before, after };
        let (x, w) = (rounded(noise(from.elements(), 1)), rounded(noise(outputs * inputs * kernel * kernel, 2)));
        let bias = noise(outputs, 3);
        let want = reference(&x, &w, &bias, from, shape);
        let conv = |ctx: &Ctx, format| Conv2d::new(ctx, format, shape, (&w).into(), Some((&bias).into())).unwrap();
        check(conv, &x, from, &want, 2e-6);
    }
}

#[test]
fn upsampling_is_the_convolution_of_the_doubled_image() {
    for (height, width, inputs, outputs) in [(1, 1, 2, 3), (5, 9, 33, 40), (4, 35, 64, 8)] {
        let from = ImageShape { batch: 2, height, width, channels: inputs };
        let (x, w, bias) =
            (rounded(noise(from.elements(), 1)), rounded(noise(outputs * inputs * 9, 2)), noise(outputs, 3));
        let (large, to) = doubled(&x, from);
        let want = reference(&large, &w, &bias, to, ConvShape::same3(inputs, outputs));
        let conv = |ctx: &Ctx, format| {
            Conv2d::upsampled(ctx, format, inputs, outputs, (&w).into(), Some((&bias).into())).unwrap()
        };
        // Sums of weights are rounded to bf16 once more.
        check(conv, &x, from, &want, 4e-3);
    }
}

#[test]
fn convolution_over_time_reads_the_frames_before() {
    let (frames, height, width, inputs, outputs, depth) = (4, 3, 5, 40, 6, 3);
    let from = ImageShape { batch: 2 * frames, height, width, channels: inputs };
    let picture = inputs * height * width;
    let (x, w) = (rounded(noise(from.elements(), 1)), rounded(noise(outputs * inputs * depth * 9, 2)));
    let bias = noise(outputs, 3);
    let mut want = vec![0f32; from.batch * outputs * height * width];
    for tap in 0..depth {
        // The sum of ordinary convolutions of shifted videos, with the bias in one of them.
        let back = depth - 1 - tap;
        let kernel: Vec<f32> = w.chunks(depth * 9).flat_map(|w| w[tap * 9..][..9].to_vec()).collect();
        let shifted: Vec<f32> = (0..from.batch)
            .flat_map(|i| match i % frames >= back {
                true => x[(i - back) * picture..][..picture].to_vec(),
                false => vec![0.0; picture],
            })
            .collect();
        let bias = if back == 0 { bias.clone() } else { vec![0.0; outputs] };
        let part = reference(&shifted, &kernel, &bias, from, ConvShape::same3(inputs, outputs));
        want.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    for ctx in contexts() {
        for (format, half) in [(WeightFormat::F32, false), (WeightFormat::Bf16, true)] {
            let shape = ConvShape::same3(inputs, outputs);
            let conv = Conv2d::causal(&ctx, format, shape, depth, (&w).into(), Some((&bias).into())).unwrap();
            let image = Image::from_nchw(&ctx, (&x).into(), from, half).unwrap();
            let mut out = Image::empty(false);
            conv.forward_frames(&ctx, &image, frames, &mut out, ConvEpilogue::default()).unwrap();
            let mut got = vec![0f32; want.len()];
            out.to_nchw(&ctx, (&mut got).into()).unwrap();
            let error = relative_error(&got, &want);
            assert!(error < 2e-6, "{} {format:?}: {error}", ctx.isa());
            assert!(conv.forward_frames(&ctx, &image, 3, &mut out, ConvEpilogue::default()).is_err());
        }
    }
}

#[test]
fn activation_and_residual_are_fused_and_threads_change_nothing() {
    let from = ImageShape { batch: 1, height: 11, width: 21, channels: 20 };
    let (x, w) = (rounded(noise(from.elements(), 1)), rounded(noise(20 * 20 * 9, 2)));
    let added = rounded(noise(from.elements(), 3));
    let product = reference(&x, &w, &[0.0; 20], from, ConvShape::same3(20, 20));
    let want: Vec<f32> = product.iter().zip(&added).map(|(y, r)| r + y / (1.0 + (-y).exp())).collect();
    for &isa in Isa::available() {
        let run = |threads, half| {
            let ctx = Ctx::new(isa, threads).unwrap();
            let format = if half { WeightFormat::Bf16 } else { WeightFormat::F32 };
            let conv = Conv2d::new(&ctx, format, ConvShape::same3(20, 20), (&w).into(), None).unwrap();
            let image = |values: &Vec<f32>| Image::from_nchw(&ctx, values.into(), from, half).unwrap();
            let (x, residual, mut out) = (image(&x), image(&added), Image::empty(false));
            let epilogue = ConvEpilogue { activation: Activation::Silu, residual: Some(&residual) };
            conv.forward(&ctx, &x, &mut out, epilogue).unwrap();
            let mut got = vec![0f32; from.elements()];
            out.to_nchw(&ctx, (&mut got).into()).unwrap();
            got
        };
        for half in [false, true] {
            let got = run(1, half);
            assert!(relative_error(&got, &want) < 3e-6, "{isa}");
            assert_eq!(got, run(3, half), "{isa}");
        }
    }
}

#[test]
fn group_norm_agrees_with_f64_even_far_from_zero() {
    for ctx in contexts() {
        for (batch, height, width, channels, groups) in [(1, 1, 1, 4, 2), (2, 5, 7, 40, 8), (1, 16, 3, 96, 32)] {
            let shape = ImageShape { batch, height, width, channels };
            let x: Vec<f32> = noise(shape.elements(), 1).iter().map(|x| x + 30.0).collect();
            let (w, b) = (noise(channels, 2), noise(channels, 3));
            let size = channels / groups * height * width;
            let mut want = Vec::new();
            for (i, group) in x.chunks(size).enumerate() {
                let mean = group.iter().map(|&x| f64::from(x)).sum::<f64>() / size as f64;
                let var = group.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / size as f64;
                for (j, &x) in group.iter().enumerate() {
                    let c = i % groups * (channels / groups) + j / (height * width);
                    let y = (f64::from(x) - mean) / (var + 1e-6).sqrt() * f64::from(w[c]) + f64::from(b[c]);
                    want.push((y / (1.0 + (-y).exp())) as f32);
                }
            }
            let norm = GroupNorm { groups, eps: 1e-6, weight: &w, bias: &b, activation: Activation::Silu };
            let image = Image::from_nchw(&ctx, (&x).into(), shape, false).unwrap();
            let mut out = Image::empty(false);
            norm.forward(&ctx, &image, &mut out).unwrap();
            let mut got = vec![0f32; x.len()];
            out.to_nchw(&ctx, (&mut got).into()).unwrap();
            let error = relative_error(&got, &want);
            assert!(error < 2e-5, "{} {shape:?}: {error}", ctx.isa());
        }
    }
}

#[test]
fn wrong_sizes_are_typed_errors() {
    let ctx = Ctx::global();
    let shape = ConvShape::same3(2, 3);
    let w = vec![0f32; 54];
    let new = |shape, w: &[f32]| Conv2d::new(ctx, WeightFormat::F32, shape, w.into(), None);
    assert!(new(shape, &w[1..]).is_err());
    assert!(new(ConvShape { kernel: 5, ..shape }, &w).is_err());
    assert!(new(ConvShape { stride: 0, ..shape }, &w).is_err());
    assert!(new(ConvShape { inputs: usize::MAX, ..shape }, &w).is_err());
    let conv = new(shape, &w).unwrap();
    let of = |channels, height| ImageShape { batch: 1, height, width: 2, channels };
    let image =
        |shape: ImageShape| Image::from_nchw(ctx, (&vec![0f32; shape.elements()]).into(), shape, false).unwrap();
    let mut out = Image::empty(false);
    assert!(conv.forward(ctx, &image(of(3, 2)), &mut out, ConvEpilogue::default()).is_err());
    let residual = image(of(3, 4));
    let epilogue = ConvEpilogue { residual: Some(&residual), ..ConvEpilogue::default() };
    assert!(conv.forward(ctx, &image(of(2, 2)), &mut out, epilogue).is_err());
    assert!(out.reshape(ImageShape { batch: 1, height: usize::MAX, width: 1, channels: 1 }).is_err());
    assert!(Image::from_nchw(ctx, (&vec![0f32; 3]).into(), of(2, 2), true).is_err());
    let norm = GroupNorm { groups: 2, eps: 1e-6, weight: &[1.0; 3], bias: &[0.0; 3], activation: Activation::Identity };
    assert!(norm.forward(ctx, &image(of(3, 2)), &mut out).is_err());
}
