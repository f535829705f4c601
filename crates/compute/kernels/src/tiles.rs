//! The tile unit (AMX), driven by inline assembly: its intrinsics are not stable yet.

use std::arch::asm;

use crate::linear::{Ahead, Place};
use crate::memory::Scratch;

/// Bytes of a tile: sixteen rows of 64.
pub(crate) const TILE: usize = 1024;
/// Columns of the sums.
const COLUMNS: usize = 32;
/// Most steps of a chunk: its weights (20 KB) stay in L1, and its sums, which lie in L2, are seldom brought up to date.
pub(crate) const STEPS: usize = 10;

/// Eight tiles of rows of 64 bytes, for as long as this lives.
pub(crate) struct TileConfig;

impl TileConfig {
    /// Configures this thread's tiles: sixteen rows each. Only called where `Isa::AmxBf16` was found available.
    pub(crate) fn load() -> Self {
        Self::with_rows(16)
    }

    /// As many rows as there are, up to sixteen, in the tiles of `one_tile` that hold activations and sums: rows that
    /// aren't there cost neither loads nor products.
    fn with_rows(rows: usize) -> Self {
        #[repr(C, align(64))]
        struct Config {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            bytes_per_row: [u16; 16],
            rows: [u8; 16],
        }
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], bytes_per_row: [0; 16], rows: [0; 16] };
        config.bytes_per_row[..8].fill(64);
        config.rows[..8].fill(16);
        for tile in [0, 1, 4] {
            config.rows[tile] = rows.clamp(1, 16) as u8;
        }
        // SAFETY: the process was granted the tiles, and the configuration is valid for palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
        TileConfig
    }
}

impl Drop for TileConfig {
    fn drop(&mut self) {
        // SAFETY: gives the tiles back, so that the system need not save them any more.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Asks for lines at these distances from a pointer, into L2.
macro_rules! to_l2 {
    ($at:literal $($distance:literal)*) => { concat!($("prefetcht1 [{", $at, "} + ", $distance, "]\n"),*) };
}

/// 32 rows times 32 columns: 2 x 2 tiles of sums, every loaded tile used twice.
///
/// # Safety
/// Tiles are configured; `a` is `[steps][2]` tiles, `b` too, `sums` is `[32][COLUMNS]`.
pub(crate) unsafe fn two_tiles(a: *const u8, b: *const u8, sums: *mut f32, steps: usize, first: bool) {
    // SAFETY: by the contract above.
    unsafe {
        let sums = Sums::load(sums, first);
        for step in 0..steps {
            let at = step * 2 * TILE;
            sums.add_step(a.add(at), b.add(at), a);
        }
        sums.store();
    }
}

/// Tiles at work on the products of a task: each product is brought to its sums during the next one.
pub(crate) struct Pipe {
    /// A product of 32 rows, then two of 16 that take turns.
    products: Scratch,
    pending: Pending,
    pending_few: Pending,
    turn: usize,
    integers: bool,
    _tiles: TileConfig,
}

impl Pipe {
    /// A pipe for products of `i8` or of bf16, of `rows` rows in all. Only called where `Isa::AmxBf16` was found available.
    pub(crate) fn new(integers: bool, rows: usize) -> Self {
        let products = Scratch::of::<f32>(64 * COLUMNS);
        let none = Pending::None;
        Pipe { products, pending: none, pending_few: none, turn: 0, integers, _tiles: TileConfig::with_rows(rows) }
    }

    /// Multiplies up to 32 rows. The sums are whole only after the `last` one.
    ///
    /// # Safety
    /// `a` is `[steps]` times the tiles of `rows`, `b` is `[steps][2]` tiles, `sums` is `[rows][COLUMNS]` with rows up to a
    /// multiple of 16, valid until the last product.
    pub(crate) unsafe fn multiply(
        &mut self,
        (a, b, steps): (*const u8, *const u8, usize),
        sums: *mut f32,
        rows: usize,
        place: Place,
        ahead: Ahead,
    ) {
        let own = if place.first { Pending::Put(sums) } else { Pending::Add(sums) };
        // SAFETY: by the contract above; what is pending is as large as its buffer, and comes to its sums before what is
        // added to them next.
        unsafe {
            if rows > 16 {
                let to = self.products.ptr::<f32>();
                match self.integers {
                    false => product(a, b, steps, to, self.pending, ahead),
                    true => product_int8(a, b, steps, to, self.pending, ahead),
                }
                self.pending = own;
                if place.last {
                    flush(to, own, rows, self.integers);
                    self.pending = Pending::None;
                }
                return;
            }
            let before = self.products.ptr::<f32>().add((32 + self.turn * 16) * COLUMNS);
            self.turn = 1 - self.turn;
            let to = self.products.ptr::<f32>().add((32 + self.turn * 16) * COLUMNS);
            match self.integers {
                false => one_tile(a, b, to, steps),
                true => one_tile_int8(a, b, to, steps),
            }
            flush(before, self.pending_few, rows, self.integers);
            self.pending_few = own;
            if place.last {
                flush(to, own, rows, self.integers);
                self.pending_few = Pending::None;
            }
        }
    }
}

/// A product that waits in its buffer to be added to the sums it belongs to.
#[derive(Clone, Copy)]
enum Pending {
    /// None does.
    None,
    /// The first of its sums: they become what it is.
    Put(*mut f32),
    /// It is added to them.
    Add(*mut f32),
}

/// Steps of a product that other work is hidden behind: eight lines each, 32 rows in all.
const HIDING: usize = 8;

/// Eight lines of the pending product go to their sums, two after each product of tiles.
macro_rules! put {
    ($first:literal $second:literal) => {
        concat!(
            "vmovups zmm16, [{to} + ",
            $first,
            "]\n",
            "vmovups zmm17, [{to} + ",
            $second,
            "]\n",
            "vmovups [{sums} + ",
            $first,
            "], zmm16\n",
            "vmovups [{sums} + ",
            $second,
            "], zmm17\n",
        )
    };
}
macro_rules! add_floats {
    ($first:literal $second:literal) => {
        concat!(
            "vmovups zmm16, [{to} + ",
            $first,
            "]\n",
            "vmovups zmm17, [{to} + ",
            $second,
            "]\n",
            "vaddps zmm16, zmm16, [{sums} + ",
            $first,
            "]\n",
            "vaddps zmm17, zmm17, [{sums} + ",
            $second,
            "]\n",
            "vmovups [{sums} + ",
            $first,
            "], zmm16\n",
            "vmovups [{sums} + ",
            $second,
            "], zmm17\n",
        )
    };
}
macro_rules! add_integers {
    ($first:literal $second:literal) => {
        concat!(
            "vmovdqu32 zmm16, [{to} + ",
            $first,
            "]\n",
            "vmovdqu32 zmm17, [{to} + ",
            $second,
            "]\n",
            "vpaddd zmm16, zmm16, [{sums} + ",
            $first,
            "]\n",
            "vpaddd zmm17, zmm17, [{sums} + ",
            $second,
            "]\n",
            "vmovdqu32 [{sums} + ",
            $first,
            "], zmm16\n",
            "vmovdqu32 [{sums} + ",
            $second,
            "], zmm17\n",
        )
    };
}

/// `steps` steps into tiles 0 to 3, with other work after each of the four products.
macro_rules! steps {
    ($dot:literal, $first:expr, $second:expr, $third:expr, $fourth:expr, $end:expr) => {
        concat!(
            "2:\n",
            "tileloadd tmm6, [{b} + {row}]\n",
            "tileloaddt1 tmm4, [{a} + {row}]\n",
            $first,
            $dot, " tmm0, tmm4, tmm6\n",
            "tileloaddt1 tmm5, [{a} + {row} + 1024]\n",
            to_l2!("rows" 0 64),
            $second,
            $dot, " tmm2, tmm5, tmm6\n",
            "tileloadd tmm7, [{b} + {row} + 1024]\n",
            to_l2!("rows" 128 192),
            $third,
            $dot, " tmm1, tmm4, tmm7\n",
            to_l2!("weights" 0 64),
            $fourth,
            $dot, " tmm3, tmm5, tmm7\n",
            "add {a}, 2048\n",
            "add {b}, 2048\n",
            "add {rows}, 256\n",
            "add {weights}, 128\n",
            $end,
            "dec {steps}\n",
            "jnz 2b\n",
        )
    };
}

macro_rules! product {
($name:ident, $dot:literal, $add:ident) => {
/// 32 rows times 32 columns into `to`: 2 x 2 tiles of sums, every loaded tile used twice. Meanwhile the product that is
/// pending there goes to its sums. That costs next to nothing, whereas loading sums into tiles and storing them would
/// hold the products up.
///
/// # Safety
/// Tiles are configured and AVX-512 is there; `a` is `[steps][2]` tiles, `b` too, `to` and what is pending are
/// `[32][COLUMNS]`; `steps` isn't zero.
unsafe fn $name(a: *const u8, b: *const u8, steps: usize, to: *mut f32, pending: Pending, ahead: Ahead) {
    // SAFETY: by the contract above. Tiles are no registers that the compiler uses. Rows come from L2 and are not used
    // again soon, so they are kept out of L1, where the weights stay. A prefetch of any address does no harm.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        let (mut a, mut b, mut ahead, mut left) = (a, b, ahead, steps);
        macro_rules! with {
            ($work:ident, $sums:expr) => {
                asm!(
                    steps!(
                        $dot, $work!(0 64), $work!(128 192), $work!(256 320), $work!(384 448),
                        "add {to}, 512\nadd {sums}, 512\n"
                    ),
                    a = inout(reg) a,
                    b = inout(reg) b,
                    rows = inout(reg) ahead.rows,
                    weights = inout(reg) ahead.weights,
                    to = inout(reg) to => _,
                    sums = inout(reg) $sums => _,
                    steps = inout(reg) HIDING => _,
                    row = in(reg) 64usize,
                    out("zmm16") _, out("zmm17") _,
                    options(nostack),
                )
            };
        }
        if steps >= HIDING {
            match pending {
                Pending::None => {}
                Pending::Put(sums) => with!(put, sums),
                Pending::Add(sums) => with!($add, sums),
            }
            if !matches!(pending, Pending::None) {
                left -= HIDING;
            }
        } else {
            flush(to, pending, 32, $dot == "tdpbssd");
        }
        if left > 0 {
            asm!(
                steps!($dot, "", "", "", "", ""),
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                rows = inout(reg) ahead.rows => _,
                weights = inout(reg) ahead.weights => _,
                steps = inout(reg) left => _,
                row = in(reg) 64usize,
                options(nostack, readonly),
            );
        }
        store_sums_two(to);
    }
}
};
}

product!(product, "tdpbf16ps", add_floats);
product!(product_int8, "tdpbssd", add_integers);

/// Brings what is pending in `from` to its sums, `rows` rows of it.
///
/// # Safety
/// AVX-512 is there, and both are `[rows][COLUMNS]`.
#[target_feature(enable = "avx512f")]
unsafe fn flush(from: *const f32, pending: Pending, rows: usize, integers: bool) {
    use std::arch::x86_64::*;
    for at in (0..rows * COLUMNS).step_by(16) {
        // SAFETY: by the contract above.
        unsafe {
            let product = _mm512_loadu_ps(from.add(at));
            match pending {
                Pending::None => return,
                Pending::Put(sums) => _mm512_storeu_ps(sums.add(at), product),
                Pending::Add(sums) if integers => {
                    let sum = _mm512_loadu_si512(sums.add(at).cast());
                    _mm512_storeu_si512(sums.add(at).cast(), _mm512_add_epi32(sum, _mm512_castps_si512(product)));
                }
                Pending::Add(sums) => {
                    _mm512_storeu_ps(sums.add(at), _mm512_add_ps(product, _mm512_loadu_ps(sums.add(at))));
                }
            }
        }
    }
}

/// The sums of 32 rows and 32 columns, held in tiles from `load` to `store`.
pub(crate) struct Sums(*mut f32);

impl Sums {
    /// Takes them from memory, or starts at zero if `first`.
    ///
    /// # Safety
    /// Tiles are configured, `sums` is `[32][COLUMNS]`, and no other product runs before `store`.
    #[inline(always)]
    pub(crate) unsafe fn load(sums: *mut f32, first: bool) -> Sums {
        // SAFETY: by the contract above.
        unsafe { load_sums_two(sums, first) };
        Sums(sums)
    }

    /// Adds a product whose left tiles start at `a0` and `a1`, with rows `row_bytes` apart; `ahead` is fetched into L2,
    /// two lines a step.
    ///
    /// # Safety
    /// Both are valid for sixteen rows of `steps` times 64 bytes, `b` for as many pairs of tiles.
    #[inline(always)]
    pub(crate) unsafe fn add_strided(
        &self,
        a0: *const u8,
        a1: *const u8,
        row_bytes: usize,
        b: *const u8,
        steps: usize,
        ahead: *const u8,
    ) {
        // SAFETY: by the contract above. Tiles are no registers that the compiler uses.
        unsafe {
            asm!(
                "2:",
                "tileloadd tmm6, [{b} + {row}]",
                "tileloadd tmm4, [{a0} + {stride}]",
                "prefetcht1 [{ahead}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a1} + {stride}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "prefetcht1 [{ahead} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a0}, 64",
                "add {a1}, 64",
                "add {b}, 2048",
                "add {ahead}, 128",
                "dec {steps}",
                "jnz 2b",
                a0 = inout(reg) a0 => _,
                a1 = inout(reg) a1 => _,
                b = inout(reg) b => _,
                steps = inout(reg) steps => _,
                ahead = inout(reg) ahead => _,
                row = in(reg) 64usize,
                stride = in(reg) row_bytes,
                options(nostack, readonly),
            );
        }
    }

    /// Adds the product of two pairs of tiles; four lines of `ahead` are fetched into L2. Other work goes on around it, so
    /// there is nothing to gain from asking for tiles early.
    ///
    /// # Safety
    /// Both pairs are valid; `ahead` may be any address.
    #[inline(always)]
    pub(crate) unsafe fn add_step(&self, a: *const u8, b: *const u8, ahead: *const u8) {
        // SAFETY: by the contract above. Tiles are no registers that the compiler uses.
        unsafe {
            asm!(
                "tileloadd tmm6, [{b} + {row}]",
                "tileloaddt1 tmm4, [{a} + {row}]",
                to_l2!("ahead" 0),
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloaddt1 tmm5, [{a} + {row} + 1024]",
                to_l2!("ahead" 64),
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                to_l2!("ahead" 128),
                "tdpbf16ps tmm1, tmm4, tmm7",
                to_l2!("ahead" 192),
                "tdpbf16ps tmm3, tmm5, tmm7",
                a = in(reg) a,
                b = in(reg) b,
                ahead = in(reg) ahead,
                row = in(reg) 64usize,
                options(nostack, readonly),
            );
        }
    }

    /// Puts them back.
    ///
    /// # Safety
    /// As for `load`.
    #[inline(always)]
    pub(crate) unsafe fn store(self) {
        // SAFETY: by the contract above.
        unsafe { store_sums_two(self.0) }
    }
}

/// Sums of `two_tiles` from tiles 0 to 3.
///
/// # Safety
/// As for `two_tiles`.
#[inline(always)]
unsafe fn store_sums_two(sums: *mut f32) {
    // SAFETY: by the contract above.
    unsafe {
        asm!(
            "tilestored [{c} + {row}], tmm0",
            "tilestored [{c} + {row} + 64], tmm1",
            "tilestored [{c} + {row} + 2048], tmm2",
            "tilestored [{c} + {row} + 2112], tmm3",
            c = in(reg) sums,
            row = in(reg) COLUMNS * 4,
            options(nostack),
        );
    }
}

/// Sums of `two_tiles` into tiles 0 to 3.
///
/// # Safety
/// As for `two_tiles`.
#[inline(always)]
unsafe fn load_sums_two(sums: *const f32, first: bool) {
    // SAFETY: by the contract above.
    unsafe {
        if first {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        } else {
            asm!(
                "tileloadd tmm0, [{c} + {row}]",
                "tileloadd tmm1, [{c} + {row} + 64]",
                "tileloadd tmm2, [{c} + {row} + 2048]",
                "tileloadd tmm3, [{c} + {row} + 2112]",
                c = in(reg) sums,
                row = in(reg) COLUMNS * 4,
                options(nostack, readonly),
            );
        }
    }
}

macro_rules! one_tile {
($name:ident, $dot:literal) => {
/// Up to 16 rows times 32 columns. Weights come from memory here, so they are asked for ahead.
///
/// # Safety
/// Tiles are configured; `a` is `[steps]` tiles, `b` is `[steps][2]` tiles, `to` is `[16][COLUMNS]`.
unsafe fn $name(a: *const u8, b: *const u8, to: *mut f32, steps: usize) {
    // SAFETY: by the contract above; a prefetch past the end does nothing.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem));
        for step in 0..steps {
            let b = b.add(step * 2 * TILE);
            for line in 0..32 {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                    b.wrapping_add(PREFETCH + line * 64).cast(),
                );
            }
            asm!(
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row}]",
                concat!($dot, " tmm0, tmm4, tmm6"),
                "tileloadd tmm7, [{b} + {row} + 1024]",
                concat!($dot, " tmm1, tmm4, tmm7"),
                a = in(reg) a.add(step * TILE),
                b = in(reg) b,
                row = in(reg) 64usize,
                options(nostack, readonly),
            );
        }
        asm!(
            "tilestored [{c} + {row}], tmm0",
            "tilestored [{c} + {row} + 64], tmm1",
            c = in(reg) to,
            row = in(reg) COLUMNS * 4,
            options(nostack),
        );
    }
}
};
}

one_tile!(one_tile, "tdpbf16ps");
one_tile!(one_tile_int8, "tdpbssd");

/// How far ahead weights are asked for with few rows.
const PREFETCH: usize = 8 << 10;
