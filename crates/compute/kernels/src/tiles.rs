//! The tile unit (AMX), driven by inline assembly: its intrinsics are not stable yet.

use std::arch::asm;

use crate::linear::Ahead;

/// Bytes of a tile: sixteen rows of 64.
pub(crate) const TILE: usize = 1024;
/// Columns of the sums.
const COLUMNS: usize = 32;
/// Steps of an operand that, together with the other one (16 KB of each), stay in L1.
pub(crate) const STEPS: usize = 8;

/// All eight tiles as 16 rows of 64 bytes, for as long as this lives.
pub(crate) struct TileConfig;

impl TileConfig {
    /// Configures this thread's tiles. Only called where `Isa::AmxBf16` was found available.
    pub(crate) fn load() -> Self {
        #[repr(C, align(64))]
        struct Config {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            bytes_per_row: [u16; 16],
            rows: [u8; 16],
        }
        static CONFIG: Config = {
            let mut bytes_per_row = [0; 16];
            let mut rows = [0; 16];
            let mut tile = 0;
            while tile < 8 {
                bytes_per_row[tile] = 64;
                rows[tile] = 16;
                tile += 1;
            }
            Config { palette: 1, start_row: 0, reserved: [0; 14], bytes_per_row, rows }
        };
        // SAFETY: the process was granted the tiles, and the configuration is valid for palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly)) };
        TileConfig
    }
}

impl Drop for TileConfig {
    fn drop(&mut self) {
        // SAFETY: gives the tiles back, so that the system need not save them any more.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Asks for lines at these distances from a pointer: into L1, and into L2.
macro_rules! to_l1 {
    ($at:literal $($distance:literal)*) => { concat!($("prefetcht0 [{", $at, "} + ", $distance, "]\n"),*) };
}
macro_rules! to_l2 {
    ($at:literal $($distance:literal)*) => { concat!($("prefetcht1 [{", $at, "} + ", $distance, "]\n"),*) };
}

// What a step of `two_tiles` asks for, of a whole chunk's worth.
const _: () = assert!(Ahead::ROWS / STEPS == 4 * 64 && Ahead::WEIGHTS / STEPS == 2 * 64);

macro_rules! two_tiles {
($name:ident, $dot:literal) => {
/// 32 rows times 32 columns: 2 x 2 tiles of sums, every loaded tile used twice.
///
/// # Safety
/// Tiles are configured; `a` is `[steps][2]` tiles, `b` too, `sums` is `[32][COLUMNS]`.
pub(crate) unsafe fn $name(a: *const u8, b: *const u8, sums: *mut f32, steps: usize, first: bool, ahead: Ahead) {
    // SAFETY: by the contract above. Tiles are no registers that the compiler uses.
    unsafe {
        load_sums_two(sums, first);
        if steps > 0 {
            // Loads of rows come from L2, so each is asked for two steps ahead. A prefetch of any address does no harm.
            asm!(
                "2:",
                "tileloadd tmm6, [{b} + {row}]",
                "tileloadd tmm4, [{a} + {row}]",
                to_l1!("a" 4096 4160 4224 4288 4352 4416 4480 4544),
                to_l2!("rows" 0 64),
                concat!($dot, " tmm0, tmm4, tmm6"),
                "tileloadd tmm5, [{a} + {row} + 1024]",
                to_l1!("a" 4608 4672 4736 4800 4864 4928 4992 5056),
                to_l2!("rows" 128 192),
                concat!($dot, " tmm2, tmm5, tmm6"),
                "tileloadd tmm7, [{b} + {row} + 1024]",
                to_l1!("a" 5120 5184 5248 5312 5376 5440 5504 5568),
                to_l2!("weights" 0),
                concat!($dot, " tmm1, tmm4, tmm7"),
                to_l1!("a" 5632 5696 5760 5824 5888 5952 6016 6080),
                to_l2!("weights" 64),
                concat!($dot, " tmm3, tmm5, tmm7"),
                "add {a}, 2048",
                "add {b}, 2048",
                "add {rows}, 256",
                "add {weights}, 128",
                "dec {steps}",
                "jnz 2b",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                steps = inout(reg) steps => _,
                row = in(reg) 64usize,
                rows = inout(reg) ahead.rows => _,
                weights = inout(reg) ahead.weights => _,
                options(nostack, readonly),
            );
        }
        store_sums_two(sums);
    }
}
};
}

two_tiles!(two_tiles, "tdpbf16ps");
two_tiles!(two_tiles_int8, "tdpbssd");

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
                "tileloadd tmm4, [{a} + {row}]",
                to_l2!("ahead" 0),
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {row} + 1024]",
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
/// Tiles are configured; `a` is `[steps]` tiles, `b` is `[steps][2]` tiles, `sums` is `[16][COLUMNS]`.
pub(crate) unsafe fn $name(a: *const u8, b: *const u8, sums: *mut f32, steps: usize, first: bool) {
    // SAFETY: by the contract above; a prefetch past the end does nothing.
    unsafe {
        if first {
            asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem));
        } else {
            asm!(
                "tileloadd tmm0, [{c} + {row}]",
                "tileloadd tmm1, [{c} + {row} + 64]",
                c = in(reg) sums,
                row = in(reg) COLUMNS * 4,
                options(nostack, readonly),
            );
        }
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
            c = in(reg) sums,
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
