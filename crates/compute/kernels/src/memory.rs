//! Aligned memory: packed weights, and scratch that is reused from call to call.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

use bytemuck::Pod;

/// One cache line, the unit of tile rows.
const LINE: usize = 64;
/// From this size on, memory is aligned to (and asked for in) huge pages.
const HUGE: usize = 2 << 20;

/// Zeroed bytes, aligned to a cache line (large ones to a huge page).
pub(crate) struct Bytes {
    start: NonNull<u8>,
    len: usize,
    source: Source,
}

/// Where memory came from, and so how it is given back.
#[derive(Clone, Copy)]
enum Source {
    Heap,
    /// Mapped for itself: `(address, length)`.
    #[cfg(target_os = "linux")]
    Mapped(*mut libc::c_void, usize),
}

// SAFETY: it owns its memory like a Vec.
unsafe impl Send for Bytes {}
// SAFETY: shared access only reads.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// `len` zero bytes. `len` stays below `isize::MAX / 2`, which every caller has checked by `product`.
    pub(crate) fn zeroed(len: usize) -> Bytes {
        let len = len.next_multiple_of(LINE).max(LINE);
        #[cfg(target_os = "linux")]
        if len >= HUGE
            && let Some(bytes) = Bytes::mapped(len)
        {
            return bytes;
        }
        let layout = Bytes::layout(len);
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        Bytes { start, len, source: Source::Heap }
    }

    /// Fresh pages. The heap would hand out pages touched before, which can't become huge ones any more.
    #[cfg(target_os = "linux")]
    fn mapped(len: usize) -> Option<Bytes> {
        let total = len.next_multiple_of(HUGE) + HUGE;
        // SAFETY: a new private mapping; nothing else is touched.
        let base = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), total, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let skip = base.align_offset(HUGE);
        let start = base.cast::<u8>().wrapping_add(skip);
        // SAFETY: the range is ours; the advice does not change its contents. Failure only costs speed.
        unsafe { libc::madvise(start.cast(), total - HUGE, libc::MADV_HUGEPAGE) };
        Some(Bytes { start: NonNull::new(start)?, len, source: Source::Mapped(base, total) })
    }

    fn layout(len: usize) -> Layout {
        match Layout::from_size_align(len, LINE) {
            Ok(layout) => layout,
            Err(_) => panic!("a buffer of {len} bytes can't exist"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The memory as numbers.
    pub(crate) fn slice<T: Pod>(&self) -> &[T] {
        // SAFETY: aligned to 64, initialised, and any bytes are a T.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / size_of::<T>()) }
    }

    /// The memory as numbers.
    pub(crate) fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len / size_of::<T>()) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        match self.source {
            // SAFETY: allocated with this very layout.
            Source::Heap => unsafe { dealloc(self.start.as_ptr(), Bytes::layout(self.len)) },
            // SAFETY: mapped with this address and length, and nobody refers to it any more.
            #[cfg(target_os = "linux")]
            Source::Mapped(base, total) => unsafe {
                libc::munmap(base, total);
            },
        }
    }
}

thread_local! {
    static FREE: RefCell<Vec<Bytes>> = const { RefCell::new(Vec::new()) };
}

/// Buffers that a thread keeps for its next call.
const KEPT: usize = 8;

/// Scratch of the calling thread: taken from what earlier calls left, given back when dropped. Holds old contents.
pub(crate) struct Scratch(Option<Bytes>);

impl Scratch {
    /// At least `bytes` bytes.
    pub(crate) fn take(bytes: usize) -> Scratch {
        let reused = FREE.with_borrow_mut(|free| {
            let fit = free.iter().enumerate().filter(|(_, b)| b.len() >= bytes).min_by_key(|(_, b)| b.len());
            if let Some((index, _)) = fit {
                return Some(free.swap_remove(index));
            }
            // None is large enough: the smallest makes room for the new one, so that nothing piles up.
            if free.len() >= KEPT / 2
                && let Some((index, _)) = free.iter().enumerate().min_by_key(|(_, b)| b.len())
            {
                drop(free.swap_remove(index));
            }
            None
        });
        // Scratch of some size is worth a huge page: it is what kernels read most.
        let size = if bytes >= HUGE / 16 { bytes.next_multiple_of(HUGE) } else { bytes };
        Scratch(Some(reused.unwrap_or_else(|| Bytes::zeroed(size))))
    }

    /// Room for `len` numbers.
    pub(crate) fn of<T: Pod>(len: usize) -> Scratch {
        Scratch::take(len * size_of::<T>())
    }

    fn bytes(&mut self) -> &mut Bytes {
        match &mut self.0 {
            Some(bytes) => bytes,
            None => unreachable!("only taken by drop"),
        }
    }

    /// The memory as numbers; at least as many as were asked for.
    pub(crate) fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        self.bytes().slice_mut()
    }

    /// Its start, to read from.
    pub(crate) fn start(&self) -> *const u8 {
        self.0.as_ref().map_or(std::ptr::null(), |bytes| bytes.as_ptr())
    }

    /// Its start.
    pub(crate) fn ptr<T: Pod>(&mut self) -> *mut T {
        self.bytes().start.as_ptr().cast()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(bytes) = self.0.take() {
            FREE.with_borrow_mut(|free| {
                if free.len() < KEPT {
                    free.push(bytes);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_long_enough() {
        for len in [0, 1, 63, 64, 65, HUGE - 1, HUGE, HUGE + 1] {
            let bytes = Bytes::zeroed(len);
            assert!(bytes.len() >= len && (bytes.as_ptr() as usize).is_multiple_of(LINE));
            assert!(bytes.slice::<u8>().iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn scratch_is_reused() {
        let first = Scratch::of::<f32>(1000).ptr::<f32>();
        assert_eq!(first, Scratch::of::<f32>(900).ptr::<f32>());
    }
}
