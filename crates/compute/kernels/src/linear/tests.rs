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
