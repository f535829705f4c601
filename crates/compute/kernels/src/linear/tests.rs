use half::bf16;

use super::*;
use crate::ctx::test_support::{contexts, noise, relative_error};
use crate::isa::Isa;

/// `x W^T` in f64.
fn reference(x: &[f32], w: &[f32], rows: usize, outputs: usize, inputs: usize) -> Vec<f64> {
    let mut y = vec![0f64; rows * outputs];
    for r in 0..rows {
        for o in 0..outputs {
            y[r * outputs + o] =
                (0..inputs).map(|k| f64::from(x[r * inputs + k]) * f64::from(w[o * inputs + k])).sum::<f64>();
        }
    }
    y
}

fn rounded(values: &[f32]) -> Vec<f32> {
    values.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
}

fn to_bf16(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|&x| bf16::from_f32(x)).collect()
}

fn narrow(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&x| x as f32).collect()
}

const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (1, 32, 32),
    (1, 5, 33),
    (2, 31, 7),
    (5, 64, 1030),
    (13, 33, 600),
    (16, 48, 64),
    (17, 100, 95),
    (33, 32, 512),
    (70, 129, 513),
    (3, 7, 0),
    (95, 320, 1100),
];

#[test]
fn every_instruction_set_agrees_with_f64_on_ragged_shapes() {
    for ctx in contexts() {
        for (rows, outputs, inputs) in SHAPES {
            let (x, w) = (rounded(&noise(rows * inputs, 1)), rounded(&noise(outputs * inputs, 2)));
            let want = narrow(&reference(&x, &w, rows, outputs, inputs));
            for format in [WeightFormat::F32, WeightFormat::Bf16] {
                let layer = PackedLinear::new(&ctx, format, (&w).into(), outputs, inputs).unwrap();
                let mut y = vec![f32::NAN; rows * outputs];
                layer.forward(&ctx, (&x).into(), rows, (&mut y).into(), &Epilogue::default()).unwrap();
                let error = relative_error(&y, &want);
                assert!(error < 2e-6, "{} {format:?} {rows}x{outputs}x{inputs}: {error}", ctx.isa());

                let mut half = vec![bf16::NAN; rows * outputs];
                let x = to_bf16(&x);
                layer.forward(&ctx, (&x).into(), rows, (&mut half).into(), &Epilogue::default()).unwrap();
                for (half, full) in half.iter().zip(&y) {
                    assert_eq!(*half, bf16::from_f32(*full), "bf16 in and out differ only by the last rounding");
                }
            }
        }
    }
}

#[test]
fn zero_rows_and_zero_outputs_are_fine() {
    for ctx in contexts() {
        let layer = PackedLinear::new(&ctx, WeightFormat::Bf16, (&vec![1f32; 6]).into(), 2, 3).unwrap();
        layer
            .forward(&ctx, (&[][..] as &[f32]).into(), 0, (&mut [][..] as &mut [f32]).into(), &Epilogue::default())
            .unwrap();
        let none = PackedLinear::new(&ctx, WeightFormat::F32, (&[][..] as &[f32]).into(), 0, 3).unwrap();
        none.forward(&ctx, (&vec![0f32; 3]).into(), 1, (&mut [][..] as &mut [f32]).into(), &Epilogue::default())
            .unwrap();
    }
}

#[test]
fn a_row_depends_neither_on_its_neighbours_nor_on_the_number_of_threads() {
    let (rows, outputs, inputs) = (131, 70, 1100);
    let (x, w) = (noise(rows * inputs, 3), noise(outputs * inputs, 4));
    for &isa in Isa::available() {
        for format in [WeightFormat::F32, WeightFormat::Bf16] {
            let ctx = Ctx::new(isa, 1).unwrap();
            let layer = PackedLinear::new(&ctx, format, (&w).into(), outputs, inputs).unwrap();
            let mut alone = vec![0f32; rows * outputs];
            for r in 0..rows {
                let x = &x[r * inputs..][..inputs];
                let y = &mut alone[r * outputs..][..outputs];
                layer.forward(&ctx, x.into(), 1, y.into(), &Epilogue::default()).unwrap();
            }
            for (threads, rows) in [(1, rows), (2, rows), (5, rows), (2, 2), (2, 16), (2, 40), (3, 65)] {
                let ctx = Ctx::new(isa, threads).unwrap();
                let mut together = vec![0f32; rows * outputs];
                let x = (&x[..rows * inputs]).into();
                layer.forward(&ctx, x, rows, (&mut together).into(), &Epilogue::default()).unwrap();
                assert!(together == alone[..rows * outputs], "{isa} {format:?} {threads} threads {rows} rows");
            }
        }
    }
}

fn gelu64(x: f64) -> f64 {
    x / 2.0 * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh())
}

fn silu64(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn epilogues_are_fused_right() {
    let (rows, outputs, inputs) = (37, 45, 80);
    let (x, w, bias) = (rounded(&noise(rows * inputs, 5)), rounded(&noise(outputs * inputs, 6)), noise(outputs, 7));
    let (gate, residual) = (noise(3 * outputs, 8), noise(rows * outputs, 9));
    let product = reference(&x, &w, rows, outputs, inputs);
    let at = |i: usize| product[i] + f64::from(bias[i % outputs]);
    let factor = |i: usize| f64::from(gate[i / outputs / 15 * outputs + i % outputs]);
    for ctx in contexts() {
        for format in [WeightFormat::F32, WeightFormat::Bf16] {
            let layer = PackedLinear::new(&ctx, format, (&w).into(), outputs, inputs).unwrap();
            let layer = layer.with_bias((&bias).into()).unwrap();
            let run = |epilogue: Epilogue| {
                let mut y = residual.clone();
                layer.forward(&ctx, (&x).into(), rows, (&mut y).into(), &epilogue).unwrap();
                y
            };
            let check = |got: Vec<f32>, want: &dyn Fn(usize) -> f64| {
                let want: Vec<f32> = (0..rows * outputs).map(|i| want(i) as f32).collect();
                let error = relative_error(&got, &want);
                assert!(error < 3e-6, "{} {format:?}: {error}", ctx.isa());
            };
            check(run(Epilogue::activation(Activation::GeluTanh)), &|i| gelu64(at(i)));
            check(run(Epilogue::activation(Activation::Silu)), &|i| silu64(at(i)));
            check(run(Epilogue::activation(Activation::QuickGelu)), &|i| silu64(1.702 * at(i)) / 1.702);
            let in_place = Epilogue { residual: Residual::InPlace, ..Epilogue::default() };
            check(run(in_place), &|i| at(i) + f64::from(residual[i]));
            let all = Epilogue {
                activation: Activation::Silu,
                gate: Some(Gate { values: &gate, rows: 15 }),
                residual: Residual::From((&residual).into()),
            };
            check(run(all), &|i| f64::from(residual[i]) + factor(i) * silu64(at(i)));
        }
    }
}

#[test]
fn a_gated_pair_multiplies_its_halves() {
    for (rows, outputs, inputs) in [(1, 16, 32), (3, 21, 70), (40, 90, 33)] {
        let x = rounded(&noise(rows * inputs, 10));
        let (first, second) = (rounded(&noise(outputs * inputs, 11)), rounded(&noise(outputs * inputs, 12)));
        let bias = noise(2 * outputs, 13);
        let (a, b) = (reference(&x, &first, rows, outputs, inputs), reference(&x, &second, rows, outputs, inputs));
        let want: Vec<f32> = (0..rows * outputs)
            .map(|i| {
                let (p, q) = (f64::from(bias[i % outputs]), f64::from(bias[outputs + i % outputs]));
                (silu64(a[i] + p) * (b[i] + q)) as f32
            })
            .collect();
        for ctx in contexts() {
            for format in [WeightFormat::F32, WeightFormat::Bf16] {
                let layer =
                    PackedLinear::gated(&ctx, format, (&first).into(), (&second).into(), outputs, inputs).unwrap();
                let layer = layer.with_bias((&bias).into()).unwrap();
                let mut y = vec![0f32; rows * outputs];
                let epilogue = Epilogue::activation(Activation::Silu);
                layer.forward(&ctx, (&x).into(), rows, (&mut y).into(), &epilogue).unwrap();
                let error = relative_error(&y, &want);
                assert!(error < 3e-6, "{} {format:?} {rows}x{outputs}x{inputs}: {error}", ctx.isa());
            }
        }
    }
}

#[test]
fn streamed_rows_pack_to_the_same_layer_and_can_be_read_back() {
    let ctx = Ctx::new(Isa::Scalar, 2).unwrap();
    let (outputs, inputs) = (75, 41);
    let w = rounded(&noise(outputs * inputs * 2, 14));
    for format in [WeightFormat::F32, WeightFormat::Bf16] {
        let (first, second) = w.split_at(outputs * inputs);
        let whole = PackedLinear::gated(&ctx, format, first.into(), second.into(), outputs, inputs).unwrap();
        let mut builder = PackedLinearBuilder::gated(format, outputs, inputs).unwrap();
        for piece in w.chunks(7 * inputs) {
            builder.push(&ctx, (&to_bf16(piece)).into()).unwrap();
        }
        let streamed = builder.finish().unwrap();
        assert_eq!(whole.bytes.slice::<u8>(), streamed.bytes.slice::<u8>());
        let mut row = vec![0f32; inputs];
        for r in [0, 1, 74, 75, 149] {
            streamed.copy_row(r, &mut row).unwrap();
            assert_eq!(row, w[r * inputs..][..inputs]);
        }
        assert!(streamed.copy_row(150, &mut row).is_err());
    }
}

#[test]
fn wrong_sizes_are_typed_errors() {
    let ctx = Ctx::new(Isa::Scalar, 1).unwrap();
    let layer = PackedLinear::new(&ctx, WeightFormat::F32, (&vec![1f32; 12]).into(), 4, 3).unwrap();
    let forward = |x: &[f32], rows, out: &mut [f32], epilogue: &Epilogue| {
        layer.forward(&ctx, x.into(), rows, out.into(), epilogue).unwrap_err()
    };
    let none = Epilogue::default();
    let length = |what, need, got| KernelError::Length { what, need, got };
    assert_eq!(forward(&[0.0; 5], 2, &mut [0.0; 8], &none), length("x", 6, 5));
    assert_eq!(forward(&[0.0; 6], 2, &mut [0.0; 7], &none), length("out", 8, 7));
    assert_eq!(forward(&[0.0; 6], usize::MAX / 2, &mut [0.0; 7], &none), KernelError::Overflow { what: "x" });
    let gate = Epilogue { gate: Some(Gate { values: &[1.0; 4], rows: 1 }), ..none };
    assert_eq!(forward(&[0.0; 6], 2, &mut [0.0; 8], &gate), length("gate", 8, 4));
    let residual = Epilogue { residual: Residual::From(Values::F32(&[0.0; 3])), ..none };
    assert_eq!(forward(&[0.0; 6], 2, &mut [0.0; 8], &residual), length("residual", 8, 3));
    assert!(PackedLinearBuilder::new(WeightFormat::Bf16, usize::MAX, 3).is_err());
    assert!(PackedLinearBuilder::new(WeightFormat::Bf16, 1 << 40, 1 << 40).is_err());
    let mut short = PackedLinearBuilder::new(WeightFormat::Bf16, 2, 3).unwrap();
    short.push(&ctx, (&vec![0f32; 3]).into()).unwrap();
    assert_eq!(short.push(&ctx, (&vec![0f32; 6]).into()).unwrap_err(), length("weight rows", 3, 6));
    assert_eq!(short.finish().err(), Some(length("weight rows", 6, 3)));
    assert!(layer.with_bias((&vec![0f32; 3]).into()).is_err());
}

/// Bytes and what a reference decoder (gguf-py) makes of them, for two blocks each.
fn reproducible_blocks(format: WeightFormat, blocks: usize) -> Vec<u8> {
    let size = format.file_block_bytes().unwrap();
    let mut state = 7u64;
    let mut bytes: Vec<u8> = (0..blocks * size)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    // The upper bytes of the factors, so that these are of a usual size.
    let at: &[usize] = match format {
        WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4K | WeightFormat::Q5K => &[1, 3],
        WeightFormat::Q6K => &[209],
        _ => &[1],
    };
    for block in bytes.chunks_exact_mut(size) {
        at.iter().for_each(|&at| block[at] = 0x2c);
    }
    bytes
}

const BLOCKS: [WeightFormat; 8] = [
    WeightFormat::Q8_0,
    WeightFormat::Q4_0,
    WeightFormat::Q4_1,
    WeightFormat::Q5_0,
    WeightFormat::Q5_1,
    WeightFormat::Q4K,
    WeightFormat::Q5K,
    WeightFormat::Q6K,
];

/// Rows of random blocks, as a layer and as floats.
fn block_layer(ctx: &Ctx, format: WeightFormat, outputs: usize, inputs: usize) -> (PackedLinear, Vec<f32>) {
    let bytes = reproducible_blocks(format, outputs * inputs / format.block());
    let mut builder = PackedLinearBuilder::new(format, outputs, inputs).unwrap();
    for piece in bytes.chunks(bytes.len() / outputs * 5) {
        builder.push_blocks(ctx, piece).unwrap();
    }
    let layer = builder.finish().unwrap();
    let mut floats = vec![0f32; outputs * inputs];
    floats.chunks_exact_mut(inputs).enumerate().for_each(|(r, row)| layer.copy_row(r, row).unwrap());
    (layer, floats)
}

#[test]
fn blocks_decode_to_what_the_reference_decoder_says() {
    /// Format, some elements, and the sum of all magnitudes.
    type Wanted = (WeightFormat, &'static [(usize, f32)], f64);
    let wanted: [Wanted; 8] = [
        (
            WeightFormat::Q8_0,
            &[
                (0, -1.684_570_3),
                (7, -5.264_282),
                (16, 1.403_808_6),
                (31, -4.421_997),
                (32, 8.278_32),
                (63, 0.147_827_15),
            ],
            286.501_220_703_125,
        ),
        (
            WeightFormat::Q4_0,
            &[
                (0, 0.0),
                (1, -0.210_571_29),
                (16, 0.421_142_58),
                (31, -0.421_142_58),
                (40, 0.254_882_8),
                (63, -0.127_441_4),
            ],
            17.281_005_859_375,
        ),
        (
            WeightFormat::Q4_1,
            &[(0, 0.357_421_88), (1, 0.287_231_45), (31, 1.129_516_6), (40, 0.769_348_14), (63, 0.536_987_3)],
            34.541_320_800_781_25,
        ),
        (
            WeightFormat::Q5_0,
            &[(0, -0.631_713_87), (1, -0.982_666), (31, -0.772_094_7), (40, -1.156_25), (63, 0.867_187_5)],
            37.263_671_875,
        ),
        (
            WeightFormat::Q5_1,
            &[(0, 0.848_754_9), (1, 0.427_612_3), (31, 0.287_231_45), (40, 0.588_623_05), (63, 1.113_708_5)],
            68.723_754_882_812_5,
        ),
        (
            WeightFormat::Q4K,
            &[
                (0, -3.399_902_3),
                (31, -1.434_570_3),
                (32, 30.330_322),
                (127, 0.113_525_39),
                (255, 9.823_73),
                (511, 3.695_068_4),
            ],
            6_450.756_103_515_625,
        ),
        (
            WeightFormat::Q5K,
            &[
                (0, -4.522_949),
                (31, 1.934_570_3),
                (64, 43.239_87),
                (128, 10.409_18),
                (300, 98.908_81),
                (511, 15.944_092),
            ],
            13_502.039_672_851_562,
        ),
        (
            WeightFormat::Q6K,
            &[(0, 88.942_02), (16, -154.328_61), (63, 0.0), (127, 52.390_503), (200, -5.211_975), (511, 28.382_812)],
            31_182.781_982_421_875,
        ),
    ];
    for (format, samples, total) in wanted {
        let layer = block_layer(&Ctx::new(Isa::Scalar, 1).unwrap(), format, 1, 2 * format.block());
        for &(at, value) in samples {
            assert!((layer.1[at] - value).abs() <= 1e-6 * value.abs(), "{format:?} {at}: {}", layer.1[at]);
        }
        let sum: f64 = layer.1.iter().map(|&x| f64::from(x.abs())).sum();
        assert!((sum - total).abs() < 1e-6 * total, "{format:?}: {sum}");
    }
}

#[test]
fn blocks_are_multiplied_as_their_floats_are() {
    for format in BLOCKS {
        for (rows, outputs, blocks) in [(1, 40, 1), (3, 33, 2), (40, 70, 3), (70, 20, 9)] {
            let mut first: Option<Vec<f32>> = None;
            for ctx in contexts() {
                let inputs = blocks * format.block();
                let (layer, w) = block_layer(&ctx, format, outputs, inputs);
                let x = rounded(&noise(rows * inputs, 2));
                let want = narrow(&reference(&x, &w, rows, outputs, inputs));
                let mut y = vec![f32::NAN; rows * outputs];
                layer.forward(&ctx, (&x).into(), rows, (&mut y).into(), &Epilogue::default()).unwrap();
                let error = relative_error(&y, &want);
                // Activations are rounded to 8 bits; what that makes of these numbers is the same everywhere.
                assert!(error < 2e-2, "{} {format:?} {rows}x{outputs}x{inputs}: {error}", ctx.isa());
                let first = first.get_or_insert_with(|| y.clone());
                assert!(relative_error(&y, first) < 1e-5, "{} {format:?} {rows}x{outputs}x{inputs}", ctx.isa());
                let mut alone = vec![0f32; outputs];
                let last = &x[(rows - 1) * inputs..];
                layer.forward(&ctx, last.into(), 1, (&mut alone).into(), &Epilogue::default()).unwrap();
                assert_eq!(alone, y[(rows - 1) * outputs..], "{} {format:?}", ctx.isa());
            }
        }
    }
}

#[test]
fn int8_is_the_same_on_every_instruction_set_and_close_to_floats() {
    for (rows, outputs, inputs) in
        [(1, 1, 1), (1, 40, 70), (5, 33, 1030), (16, 20, 64), (37, 70, 513), (100, 64, 600), (2, 3, 0)]
    {
        let (x, w, bias) = (noise(rows * inputs, 1), noise(outputs * inputs, 2), noise(outputs, 3));
        let mut want = reference(&x, &w, rows, outputs, inputs);
        want.iter_mut().enumerate().for_each(|(i, y)| *y = silu64(*y + f64::from(bias[i % outputs])));
        let mut first: Option<Vec<f32>> = None;
        for ctx in contexts() {
            let layer = PackedLinear::new(&ctx, WeightFormat::Int8, (&w).into(), outputs, inputs).unwrap();
            let layer = layer.with_bias((&bias).into()).unwrap();
            let mut y = vec![f32::NAN; rows * outputs];
            let epilogue = Epilogue::activation(Activation::Silu);
            layer.forward(&ctx, (&x).into(), rows, (&mut y).into(), &epilogue).unwrap();
            let error = relative_error(&y, &narrow(&want));
            assert!(error < 2e-2, "{} {rows}x{outputs}x{inputs}: {error}", ctx.isa());
            let first = first.get_or_insert_with(|| y.clone());
            assert!(relative_error(&y, first) < 1e-6, "{} {rows}x{outputs}x{inputs}", ctx.isa());
            let mut row = vec![0f32; inputs];
            layer.copy_row(outputs - 1, &mut row).unwrap();
            assert!(row.iter().zip(&w[(outputs - 1) * inputs..]).all(|(a, b)| (a - b).abs() < 5e-3));
            let mut alone = vec![0f32; outputs];
            let last = &x[(rows - 1) * inputs..];
            layer.forward(&ctx, last.into(), 1, (&mut alone).into(), &epilogue).unwrap();
            assert_eq!(alone, y[(rows - 1) * outputs..], "{}", ctx.isa());
        }
    }
}

#[test]
fn int8_carries_rows_of_zeros_and_of_infinities() {
    for ctx in contexts() {
        for (inputs, at) in [(3, 1), (40, 7), (40, 39)] {
            let w = vec![1f32; inputs];
            let layer = PackedLinear::new(&ctx, WeightFormat::Int8, (&w).into(), 1, inputs).unwrap();
            for bad in [f32::INFINITY, f32::NAN] {
                let mut x = vec![0f32; 2 * inputs];
                x[inputs + at] = bad;
                let mut y = vec![1f32; 2];
                layer.forward(&ctx, (&x).into(), 2, (&mut y).into(), &Epilogue::default()).unwrap();
                assert!(y[0] == 0.0 && y[1].is_nan(), "{} {bad}: {y:?}", ctx.isa());
            }
        }
    }
}

#[test]
fn formats_refuse_what_they_can_not_hold() {
    let ctx = Ctx::global();
    assert!(PackedLinearBuilder::new(WeightFormat::Q4K, 4, 128).is_err());
    assert!(PackedLinearBuilder::new(WeightFormat::Int8, 4, (1 << 16) + 1).is_err());
    let mut blocks = PackedLinearBuilder::new(WeightFormat::Q8_0, 1, 32).unwrap();
    assert!(blocks.push(ctx, (&vec![0f32; 32]).into()).is_err());
    assert!(blocks.push_blocks(ctx, &[0; 33]).is_err());
    assert!(blocks.push_blocks(ctx, &[0; 68]).is_err());
    assert!(blocks.push_blocks(ctx, &[0; 34]).is_ok());
    assert!(PackedLinearBuilder::new(WeightFormat::F32, 1, 32).unwrap().push_blocks(ctx, &[0; 34]).is_err());
}
