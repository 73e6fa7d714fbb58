//! A complete training program against the same loop on a local array.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tidewater_train::data::{BatchPlan, Dataset, ReadOptions, read};
use tidewater_train::defaults;
use tidewater_train::model::LogisticStep;

use super::comparison::{Comparison, Rounds, Title};
use super::programs;
use crate::error::BenchError;
use crate::measure::of_this_thread;

/// Rows in a mini-batch.
const BATCH: usize = 1024;
/// Epochs of the short and the long run: their difference excludes start and end.
const EPOCHS_SHORT: u64 = 4;
const EPOCHS_LONG: u64 = 24;
/// Rows in a generated set: as many as a9a has.
const ROWS: &str = "32561";
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);
/// AdaGrad parameters of the trainer.
const LR: f32 = 0.1;
const EPS: f32 = 1e-8;

/// `tidewater-train lr`, two workers and a server, against one thread without a server.
///
/// # Errors
/// If the training file cannot be read or used. Without the programs or the file the contest is recorded as
/// absent.
pub(super) fn contest(comparison: &mut Comparison<'_>) -> Result<(), BenchError> {
    let id = "train.lr";
    if !comparison.wants(&[id]) {
        return Ok(());
    }
    let programs = programs::sibling_program("tidewater")
        .and_then(|run| Ok((run, programs::sibling_program("tidewater-train")?)));
    let (run, train) = match programs {
        Ok(programs) => programs,
        Err(reason) => return comparison.absent(id, &reason),
    };
    let (file, set) = match training_file(comparison, &train) {
        Ok(file) => file,
        Err(reason) => return comparison.absent(id, &reason),
    };
    let data = read(&file, &ReadOptions::default());
    let data = data.map_err(|e| BenchError::file(&file, e))?;
    let mut rounds = Rounds::default();
    for _ in 0..comparison.args.rounds {
        let cost = |epochs| job(&run, &train, &file, epochs);
        match cost(EPOCHS_SHORT).and_then(|short| Ok((short, cost(EPOCHS_LONG)?))) {
            Ok((short, long)) => {
                let epochs = (EPOCHS_LONG - EPOCHS_SHORT) as f64;
                rounds.ours.push((long - short) / epochs * 1e3);
            }
            Err(reason) => return comparison.absent(id, &reason),
        }
        rounds.theirs.push(local_epoch(&data)? * 1e3);
    }
    let what = format!(
        "tidewater-train lr, {set}, batch 1024, 2 workers and a server: processor time of all \
         processes for an epoch of {} rows",
        data.rows()
    );
    let title = Title {
        id,
        what: &what,
        unit: "ms cpu",
    };
    comparison.record(title, rounds, Some("the same loop on a local array"))
}

/// File and description of the training set: with `--data` the public set in that folder, which must be there;
/// otherwise a set of the same size, which is generated.
fn training_file(
    comparison: &Comparison<'_>,
    train: &Path,
) -> Result<(PathBuf, &'static str), String> {
    if let Some(dir) = &comparison.args.data {
        let file = dir.join("a9a.train.libsvm");
        if file.is_file() {
            return Ok((file, "a9a"));
        }
        return Err(format!("{} is not there", file.display()));
    }
    let file = programs::scratch().join("train.libsvm");
    let mut generate = Command::new(train);
    generate.args(["generate", "--rows", ROWS, "--features", "123", "--out"]);
    programs::run(generate.arg(&file), PROGRAM_TIMEOUT)?;
    Ok((file, "a generated set (--data names a folder with a9a)"))
}

/// Processor seconds that all processes of a complete job use.
fn job(run: &Path, train: &Path, file: &Path, epochs: u64) -> Result<f64, String> {
    let before = children_cpu().ok_or("the kernel does not report processor times")?;
    let mut command = Command::new(run);
    command.args([
        "run",
        "--servers",
        "1",
        "--workers",
        "2",
        "--transport",
        "shm",
        "--",
    ]);
    command
        .arg(train)
        .args(["lr", "--batch", &BATCH.to_string()]);
    command
        .args(["--epochs", &epochs.to_string(), "--train"])
        .arg(file);
    programs::run(&mut command, PROGRAM_TIMEOUT)?;
    let after = children_cpu().ok_or("the kernel does not report processor times")?;
    Ok(after - before)
}

/// Processor seconds of this process's ended children and their descendants; `None` if the kernel does not
/// report them.
fn children_cpu() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may hold any byte; the fields after it are numbers.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(13);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Processor seconds of this thread for an epoch: the trainer's own mathematics with weights and AdaGrad sums
/// in arrays.
fn local_epoch(data: &Dataset) -> Result<f64, BenchError> {
    let batch = NonZeroUsize::new(BATCH).unwrap_or(NonZeroUsize::MIN);
    let model = defaults::logistic(batch);
    let features = data.max_key().unwrap_or(0) as usize + 1;
    // The bias is the last element.
    let place = |key: u64| (key as usize).min(features);
    let (mut weights, mut sums) = (vec![0.0_f32; features + 1], vec![0.0_f32; features + 1]);
    let mut step = LogisticStep::new(model);
    let mut pulled = Vec::new();
    let mut plan = BatchPlan::new(data, batch);
    let before = of_this_thread();
    plan.shuffle(1, 0);
    for batch in plan.batches() {
        let keys = step.prepare(&batch);
        pulled.clear();
        pulled.extend(keys.iter().map(|&key| weights[place(key)]));
        let done = step.compute(&batch, &pulled);
        done.map_err(|e| BenchError::Usage(format!("the training set: {e}")))?;
        for (&key, &g) in step.keys().iter().zip(step.gradient()) {
            let at = place(key);
            sums[at] += g * g;
            weights[at] -= LR * g / (sums[at].sqrt() + EPS);
        }
    }
    let used = of_this_thread().since(before);
    std::hint::black_box(&weights);
    Ok(used.cpu_ns as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_child_is_counted() {
        let before = children_cpu().unwrap();
        let mut busy = Command::new("sh");
        busy.args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"]);
        programs::run(&mut busy, PROGRAM_TIMEOUT).unwrap();
        assert!(children_cpu().unwrap() > before);
    }

    #[test]
    fn the_local_loop_trains() {
        let mut data = Dataset::new();
        for n in 0..5000_u64 {
            let label = (n % 2) as f32;
            data.push(label, &[n % 2, 2 + n % 3], &[1.0, 1.0]).unwrap();
        }
        assert!(local_epoch(&data).unwrap() > 0.0);
    }
}
