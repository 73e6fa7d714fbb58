//! The memory passes of a dense BSP step alone: no lane, clock, version or wait.

use std::time::Duration;

use tidewater_kernels::RowKernel;
use tidewater_protocol::table::{DType, Optimizer};
use tidewater_runtime::clock;

use crate::error::BenchError;

/// Bytes of a lane's ring, and of its staging area.
const RING: usize = 1 << 20;
/// Bytes that a tick reduces at a time.
const TICK: usize = 16 << 10;
/// Elements of a row in the kernel that checks gradients.
const DIM: usize = 1024;

/// Memory of one thread: its part of the table, and every worker's copy of that part.
#[derive(Debug)]
struct Part {
    parameters: Vec<f32>,
    workers: Vec<Worker>,
    payload: Vec<u8>,
    kernel: RowKernel,
    /// Bytes of one worker's gradient that go through all passes of its push before the next piece; a divisor of
    /// [`RING`].
    piece: usize,
}

#[derive(Debug)]
struct Worker {
    gradient: Vec<u8>,
    pulled: Vec<f32>,
    held: Vec<u8>,
    staging: Vec<u8>,
    ring: Vec<u8>,
}

/// Result of some steps.
#[derive(Debug, Clone, Copy)]
pub struct PassRate {
    /// Steps a second: their number divided by their total time.
    pub steps_per_s: f64,
    /// Number of parts, over all steps, with a gradient that is not finite or with a panic.
    pub wrong: u64,
}

impl Part {
    fn new(bytes: usize, workers: usize, piece: usize) -> Result<Self, BenchError> {
        let kernel = RowKernel::new(&Optimizer::Sgd { lr: 1.0 }, DType::F32, DIM);
        let kernel = kernel.map_err(|e| BenchError::system("make a kernel for a roofline", e))?;
        let gradient = 1_f32.to_le_bytes().repeat(bytes / 4);
        let worker = || Worker {
            gradient: gradient.clone(),
            pulled: vec![1.0; bytes / 4],
            held: vec![1; bytes],
            staging: vec![1; RING],
            ring: vec![1; RING],
        };
        Ok(Self {
            parameters: vec![1.0; bytes / 4],
            workers: (0..workers).map(|_| worker()).collect(),
            payload: vec![1; piece],
            kernel,
            piece,
        })
    }

    /// Runs one step of this part; returns whether all gradients were finite.
    fn step(&mut self) -> bool {
        for worker in &mut self.workers {
            worker.pulled.copy_from_slice(&self.parameters);
        }
        let mut finite = true;
        for worker in &mut self.workers {
            let pieces = worker.gradient.chunks(self.piece);
            let held = worker.held.chunks_mut(self.piece);
            for (n, (from, held)) in pieces.zip(held).enumerate() {
                let at = n * self.piece % RING;
                let (staging, ring) = (
                    &mut worker.staging[at..at + from.len()],
                    &mut worker.ring[at..at + from.len()],
                );
                staging.copy_from_slice(from);
                ring.copy_from_slice(std::hint::black_box(staging));
                let payload = &mut self.payload[..from.len()];
                payload.copy_from_slice(std::hint::black_box(ring));
                finite &= self.kernel.all_finite(payload);
                held.copy_from_slice(std::hint::black_box(payload));
            }
        }
        self.tick();
        finite
    }

    fn tick(&mut self) {
        let mut sum = [0_f32; TICK / 4];
        for (n, parameters) in self.parameters.chunks_mut(TICK / 4).enumerate() {
            let sum = &mut sum[..parameters.len()];
            sum.fill(0.0);
            for worker in &self.workers {
                let held = &worker.held[n * TICK..][..parameters.len() * 4];
                for (sum, raw) in sum.iter_mut().zip(held.as_chunks::<4>().0) {
                    *sum += f32::from_le_bytes(*raw);
                }
            }
            for (parameter, sum) in parameters.iter_mut().zip(sum) {
                *parameter -= *sum;
            }
        }
    }
}

/// Threads that share a table; each handles its part of every worker's pull, push and tick.
#[derive(Debug)]
pub struct Passes {
    parts: Vec<Part>,
}

impl Passes {
    /// Creates a table of `bytes` bytes, of which each thread has an equal part, and runs one step that is not
    /// measured. A push takes `piece` bytes, a divisor of 1 MiB, through all its passes before the next piece.
    ///
    /// # Errors
    /// Only errors of the kernel's creation.
    pub fn new(
        bytes: usize,
        workers: usize,
        threads: usize,
        piece: usize,
    ) -> Result<Self, BenchError> {
        let parts = (0..threads).map(|_| Part::new(bytes / threads, workers, piece));
        let mut passes = Self {
            parts: parts.collect::<Result<_, _>>()?,
        };
        passes.steps(1);
        Ok(passes)
    }

    /// Runs `steps` steps, one after the other; each starts its own threads, which counts as part of its time.
    pub fn steps(&mut self, steps: u32) -> PassRate {
        let mut took = Duration::ZERO;
        let mut wrong = 0;
        for _ in 0..steps {
            let begin = clock::now();
            let parts = self.parts.iter_mut();
            wrong += std::thread::scope(|scope| {
                let all: Vec<_> = parts.map(|part| scope.spawn(|| part.step())).collect();
                let done = all.into_iter().map(|thread| thread.join());
                done.filter(|finite| !matches!(finite, Ok(true))).count() as u64
            });
            took += clock::now() - begin;
        }
        PassRate {
            steps_per_s: f64::from(steps) / took.as_secs_f64(),
            wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_pulls_pushes_and_ticks() {
        let mut passes = Passes::new(1 << 16, 3, 2, 1 << 12).unwrap();
        assert_eq!(passes.steps(1).wrong, 0);
        for part in &mut passes.parts {
            // Two steps of three gradients of 1 were subtracted.
            assert!(part.parameters.iter().all(|p| *p == 1.0 - 6.0));
            let pulled = |w: &Worker| w.pulled.iter().all(|p| *p == 1.0 - 3.0);
            assert!(part.workers.iter().all(pulled));
            part.workers[1].gradient[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        assert_eq!(passes.steps(1).wrong, 2);
    }
}
