//! An allocator that keeps large blocks for reuse.
//!
//! A network asks for the same few buffers of many megabytes in every step. Allocators give such blocks back to the
//! system at once, which then clears page after page for the next step: a third of a step's time. A program that runs
//! networks sets
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: kernels::Recycler = kernels::Recycler::new();
//! ```
//!
//! Small allocations go to the system's allocator as they are.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;

/// Smaller blocks are the system allocator's business.
const SMALLEST: usize = 1 << 20;
/// Bytes that are kept at most; the block that was kept longest goes first.
const MOST_BYTES: usize = 1 << 30;
/// Blocks that are kept at most.
const MOST_BLOCKS: usize = 64;
/// Blocks start at a huge page, so that they can consist of such.
const ALIGN: usize = 2 << 20;

/// Keeps freed blocks of a megabyte and more, up to a gigabyte of them, and hands them out again without clearing them.
pub struct Recycler {
    kept: Mutex<Kept>,
}

struct Kept {
    /// Address and size, the longest kept first. Addresses, as pointers can't be sent between threads.
    blocks: [(usize, usize); MOST_BLOCKS],
    count: usize,
    bytes: usize,
}

impl Kept {
    fn remove(&mut self, at: usize) -> (usize, usize) {
        let block = self.blocks[at];
        self.blocks.copy_within(at + 1..self.count, at);
        self.count -= 1;
        self.bytes -= block.1;
        block
    }
}

impl Default for Recycler {
    fn default() -> Self {
        Self::new()
    }
}

impl Recycler {
    /// An allocator that keeps nothing yet.
    pub const fn new() -> Self {
        Self { kept: Mutex::new(Kept { blocks: [(0, 0); MOST_BLOCKS], count: 0, bytes: 0 }) }
    }

    /// Gives everything that is kept back to the system.
    pub fn trim(&self) {
        loop {
            let mut kept = self.lock();
            if kept.count == 0 {
                return;
            }
            let block = kept.remove(0);
            drop(kept);
            release(block);
        }
    }

    /// Bytes that are kept for reuse.
    pub fn kept_bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, size: usize) -> Option<*mut u8> {
        let mut kept = self.lock();
        // The latest is the likeliest to be in a cache still.
        let at = (0..kept.count).rev().find(|&at| kept.blocks[at].1 == size)?;
        Some(kept.remove(at).0 as *mut u8)
    }
}

/// The size that a block for `layout` has, if it is one of ours: rounded up so that an eighth is wasted at most, and
/// buffers of nearly the same size fit each other.
fn class(layout: Layout) -> Option<usize> {
    if layout.size() < SMALLEST || layout.align() > ALIGN {
        return None;
    }
    let step = (layout.size().checked_next_power_of_two()? / 16).max(4096);
    layout.size().checked_next_multiple_of(step)
}

fn block_layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size, ALIGN).ok()
}

fn release((address, size): (usize, usize)) {
    if let Some(layout) = block_layout(size) {
        // SAFETY: every block of ours was allocated with this layout, and nobody holds it any more.
        unsafe { System.dealloc(address as *mut u8, layout) };
    }
}

// SAFETY: blocks come from the system's allocator with a layout that depends only on the size and alignment asked for,
// at least as large and aligned; a kept block is in nobody else's hands, and is handed out once.
unsafe impl GlobalAlloc for Recycler {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((size, own)) = class(layout).and_then(|size| Some((size, block_layout(size)?))) else {
            // SAFETY: the caller's contract.
            return unsafe { System.alloc(layout) };
        };
        if let Some(block) = self.take(size) {
            return block;
        }
        // SAFETY: the size is not zero.
        let block = unsafe { System.alloc(own) };
        #[cfg(target_os = "linux")]
        if !block.is_null() {
            // SAFETY: the range is ours; the advice does not change its contents. Failure only costs speed.
            unsafe { libc::madvise(block.cast(), size, libc::MADV_HUGEPAGE) };
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class(layout).is_none() {
            // SAFETY: the caller's contract.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's contract.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: the block is at least as large as was asked for.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(size) = class(layout).filter(|size| block_layout(*size).is_some()) else {
            // SAFETY: what is none of ours came from the system with this layout.
            return unsafe { System.dealloc(block, layout) };
        };
        if size > MOST_BYTES / 2 {
            return release((block as usize, size));
        }
        loop {
            let mut kept = self.lock();
            if kept.count < MOST_BLOCKS && kept.bytes + size <= MOST_BYTES {
                let count = kept.count;
                kept.blocks[count] = (block as usize, size);
                kept.count += 1;
                kept.bytes += size;
                return;
            }
            let oldest = kept.remove(0);
            drop(kept);
            release(oldest);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller has made sure that the new size fits the alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let (old, new) = (class(layout), class(wanted));
        if old.is_none() && new.is_none() {
            // SAFETY: the caller's contract.
            return unsafe { System.realloc(block, layout, new_size) };
        }
        if old == new {
            return block;
        }
        // SAFETY: the caller's contract; both blocks are as large as what is copied.
        unsafe {
            let moved = self.alloc(wanted);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

/// Room for `len` numbers that a kernel is about to write: to clear them first would cost as much as to compute them.
///
/// # Safety
/// Every element is written before it is read.
pub unsafe fn unwritten<T: Pod>(len: usize) -> Vec<T> {
    let mut room = Vec::with_capacity(len);
    // SAFETY: the capacity suffices, and the caller writes the elements, which need no drop.
    #[allow(clippy::uninit_vec)]
    unsafe {
        room.set_len(len);
    }
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: usize = 1 << 20;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 64).unwrap()
    }

    #[test]
    fn a_freed_block_serves_the_next_of_its_size() {
        let recycler = Recycler::new();
        // SAFETY: blocks are used within their sizes and freed once, with their own layouts.
        unsafe {
            let first = recycler.alloc(layout(5 * MEGABYTE));
            first.write_bytes(7, 5 * MEGABYTE);
            recycler.dealloc(first, layout(5 * MEGABYTE));
            assert_eq!(recycler.kept_bytes(), 5 * MEGABYTE);
            let again = recycler.alloc(layout(5 * MEGABYTE - 64));
            assert_eq!((again, recycler.kept_bytes()), (first, 0));
            recycler.dealloc(again, layout(5 * MEGABYTE - 64));
            let zeroed = recycler.alloc_zeroed(layout(5 * MEGABYTE));
            assert_eq!(zeroed, first);
            assert!(std::slice::from_raw_parts(zeroed, 5 * MEGABYTE).iter().all(|byte| *byte == 0));
            let other = recycler.alloc(layout(9 * MEGABYTE));
            recycler.dealloc(other, layout(9 * MEGABYTE));
            recycler.dealloc(zeroed, layout(5 * MEGABYTE));
        }
        recycler.trim();
        assert_eq!(recycler.kept_bytes(), 0);
    }

    #[test]
    fn growing_and_shrinking_keeps_the_contents() {
        let recycler = Recycler::new();
        let mut size = 100;
        // SAFETY: blocks are used within their sizes and freed once, with their own layouts.
        unsafe {
            let mut block = recycler.alloc(layout(size));
            block.write_bytes(1, size);
            for next in [1000, 2 * MEGABYTE, 2 * MEGABYTE + 5, 40 * MEGABYTE, 3 * MEGABYTE, 50, 2 * MEGABYTE] {
                block = recycler.realloc(block, layout(size), next);
                assert!(std::slice::from_raw_parts(block, size.min(next).min(50)).iter().all(|byte| *byte == 1));
                size = next;
            }
            recycler.dealloc(block, layout(size));
        }
        recycler.trim();
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let recycler = Recycler::new();
        let sizes: Vec<usize> = (0..2 * MOST_BLOCKS).map(|i| MEGABYTE + i * 4096).collect();
        // SAFETY: blocks are freed once, with their own layouts.
        unsafe {
            let blocks: Vec<_> = sizes.iter().map(|size| recycler.alloc(layout(*size))).collect();
            blocks.iter().zip(&sizes).for_each(|(block, size)| recycler.dealloc(*block, layout(*size)));
            assert!(recycler.kept_bytes() <= MOST_BYTES && recycler.lock().count <= MOST_BLOCKS);
            for _ in 0..3 {
                let blocks = [0; 4].map(|_| recycler.alloc(layout(MOST_BYTES / 2)));
                blocks.iter().for_each(|block| recycler.dealloc(*block, layout(MOST_BYTES / 2)));
                assert!(recycler.kept_bytes() <= MOST_BYTES);
            }
            let huge = recycler.alloc(layout(MOST_BYTES));
            recycler.dealloc(huge, layout(MOST_BYTES));
        }
        assert!(recycler.kept_bytes() <= MOST_BYTES);
        recycler.trim();
    }

    #[test]
    fn sizes_that_can_not_exist_are_refused_like_by_the_system() {
        let recycler = Recycler::new();
        let most = Layout::from_size_align(isize::MAX as usize - 63, 64).unwrap();
        // SAFETY: nothing is allocated.
        assert!(unsafe { recycler.alloc(most) }.is_null());
        // SAFETY: it is written at once.
        let mut room = unsafe { unwritten::<f32>(1000) };
        room.fill(1.0);
        assert_eq!((room.len(), room.iter().sum::<f32>()), (1000, 1000.0));
    }
}
