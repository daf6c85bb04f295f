// examples/rust/main.rs — attention from Rust, by the C functions alone: no crate, no generated code
use std::ffi::{c_char, c_void, CStr, CString};
use std::mem::size_of;
use std::ptr::{null, null_mut};

// [declarations]
// What attune/c.h declares, as far as this program needs it. The rest of a struct is zeros.
#[repr(C)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: [i32; 2], // type, id
    ndim: i32,
    dtype: Type,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Text {
    text: *const c_char,
    file: *const c_char,
    line: i32,
}

#[repr(C)]
struct Name {
    name: *const c_char,
    kind: i32,
    rank: i32,
}

#[repr(C)]
struct What {
    size: u32,
    target: i32,
    exact: i32,
    reserved: i32,
    parts: [Text; 4], // score, mask, prob, sink
    scale: *const f64,
    captures: *const Name,
    params: *const Name,
    lets: *const c_void,
    n_captures: usize,
    n_params: usize,
    n_lets: usize,
}

#[repr(C)]
struct Call {
    size: u32,
    pass: i32,
    q_offset: i32,
    line: i32,
    file: *const c_char,
    max_len: [i64; 2],
    tensors: [*const Tensor; 8], // q, k, v, o, lse, max, cu_q, cu_kv
    gradients: [*const Tensor; 5],
    captures: *const *const Tensor,
    captured_grads: *const *const Tensor,
    params: *const f64,
    n_captures: usize,
    n_captured_grads: usize,
    n_params: usize,
}

#[repr(C)]
struct Said {
    size: u32,
    bug: i32,
    line: i32,
    texts: [*const c_char; 7], // code, problem, name, text, why, fix, message
    span: [usize; 2],
}

#[link(name = "attune")]
extern "C" {
    fn attune_new(what: *const What, attention: *mut *mut c_void) -> *mut c_void;
    fn attune_free(attention: *mut c_void);
    fn attune_run(attention: *const c_void, call: *const Call, with: *const c_void) -> *mut c_void;
    fn attune_error_read(error: *const c_void, said: *mut Said);
    fn attune_error_free(error: *mut c_void);
}
// [declarations]

/// An error as text.
fn checked(error: *mut c_void) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    let mut said = Said { size: size_of::<Said>() as u32, bug: 0, line: 0, texts: [null(); 7], span: [0; 2] };
    unsafe {
        attune_error_read(error, &mut said);
        let message = CStr::from_ptr(said.texts[6]).to_string_lossy().into_owned();
        attune_error_free(error);
        Err(message)
    }
}

/// An attention does not change, and may be called on any thread.
struct Attention(*mut c_void);
unsafe impl Send for Attention {}
unsafe impl Sync for Attention {}
impl Drop for Attention {
    fn drop(&mut self) {
        unsafe { attune_free(self.0) }
    }
}

impl Attention {
    /// `captures`: names of tensors of floats, with their numbers of dimensions.
    fn new(score: &str, mask: &str, captures: &[(&str, i32)]) -> Result<Attention, String> {
        let none = Text { text: null(), file: null(), line: 0 };
        let texts = [CString::new(score).unwrap(), CString::new(mask).unwrap()];
        let part = |i: usize| Text { text: texts[i].as_ptr(), ..none };
        let words: Vec<CString> = captures.iter().map(|c| CString::new(c.0).unwrap()).collect();
        let names: Vec<Name> = words
            .iter()
            .zip(captures)
            .map(|(word, c)| Name { name: word.as_ptr(), kind: 'f' as i32, rank: c.1 })
            .collect();
        let what = What {
            size: size_of::<What>() as u32,
            target: 0,
            exact: 0,
            reserved: 0,
            parts: [part(0), part(1), none, none],
            scale: null(),
            captures: names.as_ptr(),
            params: null(),
            lets: null(),
            n_captures: names.len(),
            n_params: 0,
            n_lets: 0,
        };
        let mut out = null_mut();
        checked(unsafe { attune_new(&what, &mut out) })?;
        Ok(Attention(out))
    }

    fn run(&self, q: &Tensor, k: &Tensor, v: &Tensor, o: &Tensor, captures: &[*const Tensor]) -> Result<(), String> {
        let call = Call {
            size: size_of::<Call>() as u32,
            pass: 0,
            q_offset: 0,
            line: line!() as i32,
            file: c"examples/rust/main.rs".as_ptr(),
            max_len: [0; 2],
            tensors: [q, k, v, o, null(), null(), null(), null()],
            gradients: [null(); 5],
            captures: captures.as_ptr(),
            captured_grads: null(),
            params: null(),
            n_captures: captures.len(),
            n_captured_grads: 0,
            n_params: 0,
        };
        checked(unsafe { attune_run(self.0, &call, null()) })
    }
}

/// f32 on the host, contiguous. The shape and the data outlive the tensor.
fn tensor(data: &mut [f32], shape: &mut [i64]) -> Tensor {
    Tensor {
        data: data.as_mut_ptr().cast(),
        device: [1, 0],
        ndim: shape.len() as i32,
        dtype: Type { code: 2, bits: 32, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

const HEADS: usize = 4;
const N: usize = 40;
const D: usize = 16;

/// Close to normal: a sum of twelve uniform numbers.
fn normals(count: usize, state: &mut u64) -> Vec<f32> {
    let mut uniform = || {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

/// The greatest distance from plain loops.
fn distance(q: &[f32], k: &[f32], v: &[f32], o: &[f32], slope: &[f32]) -> f64 {
    let mut worst = 0f64;
    for h in 0..HEADS {
        for i in 0..N {
            let at = |t: &[f32], row: usize, x: usize| t[(h * N + row) * D + x] as f64;
            let (mut sum, mut row) = (0f64, [0f64; D]);
            for j in 0..=i {
                let s: f64 = (0..D).map(|x| at(q, i, x) * at(k, j, x)).sum::<f64>() / (D as f64).sqrt();
                let e = (s + slope[h] as f64 * (j as f64 - i as f64)).exp();
                sum += e;
                (0..D).for_each(|x| row[x] += e * at(v, j, x));
            }
            (0..D).for_each(|x| worst = worst.max((row[x] / sum - at(o, i, x)).abs()));
        }
    }
    worst
}

fn main() -> Result<(), String> {
    let attention = Attention::new("s + slope[h] * f32(kv - q)", "kv <= q", &[("slope", 1)])?;
    // Each thread binds tensors of its own to the same attention.
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3u64)
            .map(|seed| {
                let attention = &attention;
                scope.spawn(move || -> Result<f64, String> {
                    let mut state = seed + 1;
                    let mut made = || normals(HEADS * N * D, &mut state);
                    let (mut q, mut k, mut v, mut o) = (made(), made(), made(), vec![0f32; HEADS * N * D]);
                    let mut slope = normals(HEADS, &mut state);
                    let (mut shape, mut of_slope) = ([1, HEADS as i64, N as i64, D as i64], [HEADS as i64]);
                    let t = |data: &mut [f32], shape: &mut [i64]| tensor(data, shape);
                    let (tq, tk, tv) = (t(&mut q, &mut shape), t(&mut k, &mut shape), t(&mut v, &mut shape));
                    let (to, tslope) = (t(&mut o, &mut shape), t(&mut slope, &mut of_slope));
                    attention.run(&tq, &tk, &tv, &to, &[&tslope])?;
                    Ok(distance(&q, &k, &v, &o, &slope))
                })
            })
            .collect();
        for thread in threads {
            let worst = thread.join().unwrap()?;
            assert!(worst < 1e-5, "{worst} from plain loops");
        }
        Ok::<(), String>(())
    })?;
    // A mistake is a value.
    let wrong = Attention::new("s", "kv <= w", &[]).err().unwrap_or_default();
    assert!(wrong.contains("unknown-name"), "{wrong}");
    println!("ok");
    Ok(())
}
