//! The same picture on every CPU: instruction sets, numbers of threads, and an operating system that keeps tiles to itself.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{inline, peak_to_noise, pixels};
use std::path::Path;
use std::process::Command;

/// Renders with the demo model into `dir` as the command is prepared, and gives the pixels and what went to standard error.
fn render(dir: &Path, name: &str, prepare: impl FnOnce(&mut Command)) -> (Vec<u8>, String) {
    let mut command = inline();
    command.current_dir(dir).args(["render", "a red apple", "--steps", "3", "--seed", "5", "-o", name]);
    prepare(&mut command);
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{name}: {log}");
    (pixels(&dir.join(name)).2, log)
}

#[test]
fn threads_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let with = |threads: &str| {
        render(dir.path(), &format!("{threads}.png"), |c| {
            c.env("INLINE_THREADS", threads);
        })
        .0
    };
    let one = with("1");
    for threads in ["2", "3", "17"] {
        assert_eq!(one, with(threads), "{threads} threads");
    }
}

#[test]
fn every_instruction_set_draws_the_same_picture() {
    let dir = tempfile::tempdir().unwrap();
    let with = |isa: &str| {
        render(dir.path(), &format!("{isa}.png"), |c| {
            c.env("INLINE_CPU_ISA", isa);
        })
        .0
    };
    let scalar = with("scalar");
    for isa in kernels::Isa::available().iter().filter(|isa| **isa != kernels::Isa::Scalar) {
        let likeness = peak_to_noise(&scalar, &with(isa.name()));
        // Scalar computes in f32, the best two in bf16.
        assert!(likeness > 30.0, "{isa}: {likeness} dB");
    }
}

/// As on a kernel without support for tiles, or in a container whose profile forbids them.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn without_leave_to_use_tiles_the_next_instruction_set_is_used() {
    use kernels::Isa;
    if Isa::best() != Isa::AmxBf16 {
        return; // there is nothing to be refused
    }
    let dir = tempfile::tempdir().unwrap();
    let (refused, log) = render(dir.path(), "refused.png", refuse_tiles);
    assert!(log.contains("AMX"), "it should say so: {log}");
    let (next, _) = render(dir.path(), "next.png", |c| {
        c.env("INLINE_CPU_ISA", Isa::Avx512Bf16.name());
    });
    assert_eq!(refused, next);
}

/// Makes `arch_prctl` answer EINVAL in the process to come.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(unsafe_code)] // `pre_exec` runs between fork and exec
fn refuse_tiles(command: &mut Command) {
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    };
    use std::os::unix::process::CommandExt;
    const REQUEST_PERMISSION: u64 = 0x1023;
    let asks = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, REQUEST_PERMISSION).unwrap();
    let rules = [(libc::SYS_arch_prctl, vec![SeccompRule::new(vec![asks]).unwrap()])].into_iter().collect();
    let refuse = SeccompAction::Errno(libc::EINVAL as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, seccompiler::TargetArch::x86_64).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    // SAFETY: only system calls are made, and no memory is allocated.
    unsafe {
        command.pre_exec(move || {
            seccompiler::apply_filter(&program).map_err(|_| std::io::ErrorKind::PermissionDenied.into())
        });
    }
}
