//! Who owns a handle, what it says, whose functions it calls.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use flashattn::{sys, Attention, Backend, Dtype, Error, Forward, Handle, LogLevel, Op};

fn shape() -> Attention {
    Attention::new().batch(1).heads_q(2).seqlen_q(3).seqlen_k(3).dim_qk(4)
}

fn cpu() -> Handle {
    Handle::with_backend(Backend::Cpu).unwrap()
}

#[test]
fn the_library_is_this_version_or_a_later_one_of_its_soname() {
    assert!(flashattn::version() >= sys::FA_VERSION);
    assert_eq!(flashattn::version() / 10000, sys::FA_VERSION_MAJOR);
    let package = format!("{}.{}.{}", sys::FA_VERSION_MAJOR, sys::FA_VERSION_MINOR, sys::FA_VERSION_PATCH);
    assert_eq!(package, env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_default_struct_is_what_the_library_makes() {
    let ours = sys::fa_attention_desc_t::default();
    let mut theirs = sys::fa_attention_desc_t { batch: 7, ..ours };
    assert_eq!(unsafe { sys::fa_attention_desc_init(&mut theirs, ours.struct_size) }, sys::FA_OK);
    let bytes = |d: &sys::fa_attention_desc_t| unsafe {
        std::slice::from_raw_parts((d as *const sys::fa_attention_desc_t).cast::<u8>(), std::mem::size_of_val(d)).to_vec()
    };
    assert_eq!(bytes(&ours), bytes(&theirs));
}

#[test]
fn parameters_are_set_and_read() {
    let mut handle = cpu();
    assert_eq!(handle.backend().unwrap(), Backend::Cpu);
    handle.set(sys::FA_PARAM_THREADS, 2).unwrap();
    assert_eq!(handle.get(sys::FA_PARAM_THREADS).unwrap(), 2);
    assert_eq!(handle.get(sys::FA_INFO_STREAM).unwrap(), 0);
    assert_eq!(handle.set(sys::FA_PARAM_THREADS, -1).unwrap_err().status(), sys::FA_INVALID_ARGUMENT);
}

#[test]
fn a_handle_moves_to_another_thread() {
    let mut handle = cpu();
    let o = std::thread::spawn(move || {
        let (x, mut o) = ([1.0f32; 24], [0.0f32; 24]);
        handle.forward(&shape(), &Forward::new().q(&x).k(&x).v(&x).o(&mut o)).map(|()| o)
    });
    assert_eq!(o.join().unwrap().unwrap(), [1.0; 24]);
}

#[test]
fn questions_are_answered_without_data() {
    let mut handle = cpu();
    handle.supports(&shape().q_dtype(Dtype::F32), Op::Forward).unwrap();
    assert!(handle.explain(&shape().q_dtype(Dtype::F32), Op::Forward).contains("cpu"));
    handle.workspace_size(&shape().q_dtype(Dtype::F32).operands(sys::FA_OPERAND_LSE), Op::Forward).unwrap();
    match handle.supports(&shape().q_dtype(Dtype::E4m3), Op::Backward) {
        Err(Error::Unsupported(sentence)) => assert!(sentence.contains("e4m3"), "{sentence}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_needs_no_handle() {
    flashattn::backend_status(Backend::Cpu).unwrap();
    assert!(flashattn::devices(Backend::Cpu).unwrap()[0].compute_units > 0);
    let how = flashattn::backend_supports(Backend::Cpu, 0, &shape().q_dtype(Dtype::F32), Op::Forward).unwrap();
    assert!(how.contains("cpu"), "{how}");
    let why = flashattn::backend_supports(Backend::Cpu, 0, &shape().q_dtype(Dtype::E4m3), Op::Backward).unwrap_err();
    assert!(matches!(why, Error::Unsupported(_)) && why.message().contains("e4m3"), "{why}");
    assert_eq!(flashattn::alibi_slopes(2, 0.0).unwrap(), [0.0625, 0.00390625]);
    assert_eq!(flashattn::alibi_slopes(2, -1.0).unwrap_err().status(), sys::FA_INVALID_ARGUMENT);
    assert_eq!(flashattn::dropout_mask(0.0, (1, 2), 0, 0..2, 3..6).unwrap(), [true; 6]);
    assert!(flashattn::dropout_mask(0.0, (1, 2), 0, 0..usize::MAX, 0..usize::MAX).is_err());
}

#[test]
fn the_log_and_the_pool_of_the_program_are_called() {
    let (lines, items) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (seen, done) = (lines.clone(), items.clone());
    let builder = Handle::builder().backend(Backend::Cpu).log_level(LogLevel::Debug).log(move |_, line| {
        assert!(!line.is_empty());
        seen.fetch_add(1, Ordering::Relaxed);
    });
    // SAFETY: all bodies have run when it returns.
    let builder = unsafe {
        builder.parallel_for(move |n, body| {
            std::thread::scope(|scope| {
                for i in 0..n {
                    scope.spawn(move || body(i));
                }
            });
            done.fetch_add(n, Ordering::Relaxed);
        })
    };
    let mut handle = builder.build().unwrap();
    handle.set(sys::FA_PARAM_THREADS, 2).unwrap();
    let (x, mut o) = (vec![1.0f32; 512 * 64], vec![0.0f32; 512 * 64]);
    let big = shape().seqlen_q(512).seqlen_k(512).dim_qk(32);
    handle.forward(&big, &Forward::new().q(&x).k(&x).v(&x).o(&mut o)).unwrap();
    assert_eq!(o[12345], 1.0);
    assert!(lines.load(Ordering::Relaxed) > 0 && items.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_pool_that_leaves_work_out_fails_the_call() {
    // SAFETY: what it runs is over when it returns.
    let builder = unsafe { Handle::builder().backend(Backend::Cpu).parallel_for(|n, body| (1..n).for_each(body)) };
    let mut handle = builder.build().unwrap();
    handle.set(sys::FA_PARAM_THREADS, 2).unwrap();
    let (x, mut o) = (vec![1.0f32; 512 * 64], vec![0.0f32; 512 * 64]);
    let big = shape().seqlen_q(512).seqlen_k(512).dim_qk(32);
    let refused = handle.forward(&big, &Forward::new().q(&x).k(&x).v(&x).o(&mut o)).unwrap_err();
    assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
}

#[test]
fn sizes_beyond_all_memory_are_errors() {
    assert_eq!(flashattn::alibi_slopes(usize::MAX, 0.0).unwrap_err().status(), sys::FA_INVALID_ARGUMENT);
    assert_eq!(flashattn::dropout_mask(0.0, (1, 2), 0, 0..1 << 40, 0..1 << 22).unwrap_err().status(), sys::FA_OUT_OF_MEMORY);
    assert_eq!(
        flashattn::dropout_mask(0.0, (1, 2), 0, usize::MAX - 1..usize::MAX, 0..0).unwrap_err().status(),
        sys::FA_INVALID_ARGUMENT
    );
}

#[test]
fn a_panic_of_the_pool_leaves_the_call_and_not_the_process() {
    // SAFETY: it runs no body at all, so none is left running.
    let builder = unsafe { Handle::builder().backend(Backend::Cpu).parallel_for(|_, _| panic!("the pool is closed")) };
    let mut handle = builder.build().unwrap();
    handle.set(sys::FA_PARAM_THREADS, 2).unwrap();
    let (x, mut o) = (vec![1.0f32; 512 * 64], vec![0.0f32; 512 * 64]);
    let big = shape().seqlen_q(512).seqlen_k(512).dim_qk(32);
    let call = catch_unwind(AssertUnwindSafe(|| handle.forward(&big, &Forward::new().q(&x).k(&x).v(&x).o(&mut o))));
    assert_eq!(*call.unwrap_err().downcast_ref::<&str>().unwrap(), "the pool is closed");
}
