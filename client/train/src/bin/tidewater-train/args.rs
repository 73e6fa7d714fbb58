//! The command line of `tidewater-train`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tidewater::SyncMode;
use tidewater_launch::{FabricSettings, RdmaDevice, TransportChoice};
use tidewater_protocol::limits::{NAMESPACE_BYTES_MAX, WORKERS_MAX};
use tidewater_protocol::table::Optimizer;
use tidewater_train::data::{BadRecords, Format, LabelMap, ReadOptions, Schema, SchemaError};
use tidewater_train::defaults;
use tidewater_train::{Cadence, Decay};

const EXAMPLES: &str = "\
Examples:
  Alone, with a cluster inside the process:
    tidewater-train lr --train train.libsvm --test test.libsvm

  Two servers and four workers, each a process:
    tidewater run --servers 2 --workers 4 -- \\
        tidewater-train lr --train train.libsvm --test test.libsvm --sync ssp:2 --json out.json

  The same under another launcher, with servers of their own, and with one program for all:
    mpirun -n 2 tidewater server : -n 4 tidewater-train lr --train train.libsvm
    mpirun -n 6 tidewater-train lr --train train.libsvm --servers 2
    mpirun -n 4 tidewater-train lr --train train.libsvm --servers-in-ranks

  A sparse model, saved, and evaluated later on other data:
    tidewater-train ftrl --train train.libsvm --l1 2 --save model
    tidewater-train ftrl --train train.libsvm --l1 2 --load model --epochs 0 --test new.libsvm

  Curves while training, a line of JSON each, and one line a record afterwards:
    tidewater-train lr --train train.libsvm --test test.libsvm --evaluate-every 100steps --log curve.jsonl
    tidewater-train predict --load model --data new.libsvm --out predictions --merge predictions.txt

  Data, where there is none:
    tidewater-train generate --rows 50000 --out train.libsvm
    tidewater-train generate --rows 10000 --first 50000 --out test.libsvm

Exit codes: 0 done, 1 a check failed (the model diverged), 2 wrong command line, 3 environment,
4 another process is missing or unwilling, 5 bad data file, 128+n ended by signal n. SIGTERM and
SIGUSR1 end the run after a few more steps, at the same one for all workers, and save the model if
--save is given.";

/// Trains models on a Tidewater cluster: as a worker of a job, or alone with a cluster of its own.
#[derive(Debug, Parser)]
#[command(name = "tidewater-train", version, disable_help_subcommand = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a logistic regression.
    Lr(LrArgs),
    /// Logistic regression by FTRL-proximal: L1 makes weights exactly zero.
    Ftrl(FtrlArgs),
    /// Evaluate a saved model, or the model of a running job.
    Evaluate(EvaluateArgs),
    /// Predict the records of files by a saved model, one line a record.
    Predict(PredictArgs),
    /// Write a synthetic two-class set as LIBSVM text.
    Generate(GenerateArgs),
    /// Man pages and completions, for installers.
    #[command(name = "__pages", hide = true)]
    Pages {
        /// Directory that contains share/man and the folders of shells.
        prefix: PathBuf,
    },
}

/// Arguments of the command `lr`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LrArgs {
    /// Rule by which servers apply gradients.
    #[arg(long, value_enum, default_value = "adagrad", value_name = "RULE")]
    optimizer: Rule,
    /// Learning rate [default: 0.1; adam: 0.01; adadelta: 1].
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, value_parser = positive)]
    lr: Option<f64>,
    /// L2 penalty: adds this times the weight to the gradient of each weight in a batch.
    #[arg(long, value_name = "WEIGHT", default_value = "0", allow_negative_numbers = true, value_parser = not_negative32)]
    pub(crate) l2: f32,
    /// L1 penalty of sgd and adagrad: each step ends with a soft threshold of this times its rate, which makes
    /// weights exactly zero. FTRL, a command of its own, keeps more accuracy.
    #[arg(long, value_name = "WEIGHT", default_value = "0", allow_negative_numbers = true, value_parser = not_negative)]
    l1: f64,
    #[command(flatten)]
    pub(crate) common: TrainArgs,
}

/// An L1 penalty for a rule that takes none.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("--l1 {l1}: --optimizer {rule} has no L1 step; use sgd or adagrad, or the command ftrl")]
pub(crate) struct NoL1Step {
    rule: &'static str,
    l1: f64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Rule {
    /// Plain gradient steps, without state.
    Sgd,
    /// Each step keeps 0.9 of the one before.
    Momentum,
    /// A weight's rate falls as its gradients add up.
    Adagrad,
    /// Rates from running means of gradients and their squares.
    Adam,
    /// Rates from running means of the squares of gradients and of steps.
    Adadelta,
}

impl LrArgs {
    /// Returns the rule that the flags name, with its numbers.
    ///
    /// # Errors
    ///
    /// [`NoL1Step`] if `--l1` is set for a rule that takes no L1 penalty.
    pub(crate) fn optimizer(&self) -> Result<Optimizer, NoL1Step> {
        let rate = |default| self.lr.unwrap_or(default);
        let l1 = self.l1;
        let refused = match self.optimizer {
            Rule::Momentum => Some("momentum"),
            Rule::Adam => Some("adam"),
            Rule::Adadelta => Some("adadelta"),
            Rule::Sgd | Rule::Adagrad => None,
        };
        if let Some(rule) = refused
            && l1 > 0.0
        {
            return Err(NoL1Step { rule, l1 });
        }
        Ok(match self.optimizer {
            Rule::Sgd if l1 > 0.0 => Optimizer::ProximalSgd { lr: rate(0.1), l1 },
            Rule::Adagrad if l1 > 0.0 => Optimizer::ProximalAdaGrad {
                lr: rate(0.1),
                eps: 1e-8,
                l1,
            },
            Rule::Adadelta => Optimizer::AdaDelta {
                lr: rate(1.0),
                rho: 0.9,
                eps: 1e-6,
            },
            Rule::Sgd => Optimizer::Sgd { lr: rate(0.1) },
            Rule::Momentum => Optimizer::Momentum {
                lr: rate(0.1),
                mu: 0.9,
                nesterov: false,
            },
            Rule::Adagrad => Optimizer::AdaGrad {
                lr: rate(0.1),
                eps: 1e-8,
            },
            Rule::Adam => Optimizer::Adam {
                lr: rate(0.01),
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
            },
        })
    }
}

/// Arguments of the command `ftrl`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FtrlArgs {
    /// Scale of the learning rate.
    #[arg(long, value_name = "RATE", default_value = "0.3", allow_negative_numbers = true, value_parser = positive)]
    alpha: f64,
    /// Offset of the learning rate.
    #[arg(long, value_name = "OFFSET", default_value = "1", allow_negative_numbers = true, value_parser = not_negative)]
    beta: f64,
    /// Weight of the L1 penalty: the larger, the more weights are exactly zero.
    #[arg(long, value_name = "WEIGHT", default_value = "1", allow_negative_numbers = true, value_parser = not_negative)]
    l1: f64,
    /// Weight of the L2 penalty.
    #[arg(long, value_name = "WEIGHT", default_value = "0", allow_negative_numbers = true, value_parser = not_negative)]
    l2: f64,
    #[command(flatten)]
    pub(crate) common: TrainArgs,
}

impl FtrlArgs {
    pub(crate) const fn optimizer(&self) -> Optimizer {
        Optimizer::Ftrl {
            alpha: self.alpha,
            beta: self.beta,
            l1: self.l1,
            l2: self.l2,
        }
    }
}

/// Arguments of all kinds of training.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// Training file, directory, or pattern in quotes ('part-*.gz'); each worker reads its part. Files may
    /// be in gzip, Zstandard or RecordIO.
    #[arg(long, value_name = "FILES")]
    pub(crate) train: PathBuf,
    /// Test file, directory or pattern, for the evaluation.
    #[arg(long, value_name = "FILES")]
    pub(crate) test: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) data: DataArgs,
    /// How far workers may drift apart: bsp (in step), ssp:S (the slowest at most S steps behind) or
    /// asp (no bound).
    #[arg(long, default_value = "bsp")]
    pub(crate) sync: SyncMode,
    /// Change of the learning rate: constant; step:FACTOR:EPOCHS (times FACTOR after every EPOCHS);
    /// inverse-sqrt:EPOCHS (grows over EPOCHS, then falls with the root of the step); cosine:LAST:EPOCHS
    /// (falls to LAST times the rate in EPOCHS). Epochs of all runs of a model count.
    #[arg(long, value_name = "SCHEDULE", default_value = "constant")]
    pub(crate) schedule: Decay,
    /// Rows of a worker's mini-batch.
    #[arg(long, value_name = "ROWS", default_value_t = defaults::BATCH_ROWS)]
    pub(crate) batch: NonZeroUsize,
    /// Passes over the training file, without those of a loaded model. If that was stopped within an
    /// epoch, the first pass is the rest of it. 0 evaluates a loaded model.
    #[arg(long, value_name = "N", default_value_t = defaults::EPOCHS)]
    pub(crate) epochs: u64,
    /// Seed of the order in which rows are visited.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Evaluate on the test file after each epoch: --evaluate-every 1epoch.
    #[arg(long, requires = "test", conflicts_with = "evaluate_every")]
    pub(crate) test_each_epoch: bool,
    /// Evaluate on the test file while training, as in 2epochs, 500steps or 30s (seconds need bsp or ssp).
    #[arg(long, value_name = "DISTANCE", requires = "test")]
    pub(crate) evaluate_every: Option<Cadence>,
    /// Append a line of JSON for each epoch and each evaluation to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Save the model into this directory, which all servers must see.
    #[arg(long, value_name = "DIR")]
    pub(crate) save: Option<PathBuf>,
    /// Continue from a saved model, at the epoch and step of the save; --sync and the optimizer's flags
    /// must be those of its training.
    #[arg(long, value_name = "DIR")]
    pub(crate) load: Option<PathBuf>,
    /// Write the figures as JSON into this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// Format of data files.
#[derive(Debug, Args)]
pub(crate) struct DataArgs {
    /// Format of the records: auto (libsvm or dummy; csv with --schema), libsvm (indices from 1), libsvm0
    /// (from 0), libsvm-bare (from 1, without values), dummy (from 0, without values), dense (values between
    /// blanks), dense:C (between C, or tab) or csv.
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = format)]
    pub(crate) format: FormatChoice,
    /// Columns of CSV files, or @FILE with them: items NAME:TYPE or NAME:TYPE*N with the types label, number,
    /// category and skip; header, *:TYPE, delimiter=C, quote=C or quote=none.
    #[arg(long, value_name = "ITEMS", value_parser = schema)]
    pub(crate) schema: Option<Schema>,
    /// Malformed records: fail, or skip:RATIO (left out and counted; an error if they are more than RATIO of a
    /// worker's records).
    #[arg(long, value_name = "POLICY", default_value = "fail")]
    pub(crate) bad_records: BadRecords,
    /// In files of several classes, the label of the positive one.
    #[arg(long, value_name = "LABEL", allow_negative_numbers = true)]
    pub(crate) positive: Option<f32>,
    /// Labels: binary (-1, 0 and +1), or above:T, where labels above the number T are positive.
    #[arg(long, value_name = "MAPPING", default_value = "binary", conflicts_with = "positive", value_parser = two_classes)]
    pub(crate) labels: LabelMap,
}

/// The job to work in.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    /// Transport to the servers: auto, shm, tcp or verbs [default: the launcher's choice, or auto].
    #[arg(long, value_name = "KIND")]
    pub(crate) transport: Option<TransportChoice>,
    /// In a job: RDMA ports for the lanes, as in mlx5_0:1 or mlx5_%r [default: TIDEWATER_RDMA_DEVICE, or
    /// the fastest and nearest ones that reach the servers].
    #[arg(long, value_name = "NAMES")]
    pub(crate) rdma_device: Option<RdmaDevice>,
    #[command(flatten)]
    pub(crate) fabric: FabricSettings,
    /// In a job: number of its workers, for a cluster that is a service and does not know it [default:
    /// TIDEWATER_WORKERS].
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    pub(crate) workers: Option<u32>,
    /// In a job: name that separates it from other jobs of its service [default: default].
    #[arg(long, value_name = "NAME", value_parser = namespace)]
    pub(crate) namespace: Option<String>,
    /// Alone: servers of the cluster inside this process [default: 1]. Launched by mpirun or similar:
    /// processes that become servers, spread over the ranks [default: TIDEWATER_SERVERS, or none:
    /// servers were started separately].
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) servers: Option<u32>,
    /// Launched: each process is also a server, on threads next to its worker [default:
    /// TIDEWATER_SERVERS_IN_RANKS].
    #[arg(long, conflicts_with = "servers")]
    pub(crate) servers_in_ranks: bool,
    /// Launched: number of this process among all launched ones [default: the launcher's].
    #[arg(long, value_name = "N", requires = "size")]
    pub(crate) rank: Option<u32>,
    /// Launched: number of launched processes, servers and workers [default: the launcher's].
    #[arg(long, value_name = "N")]
    pub(crate) size: Option<u32>,
    /// Launched: rendezvous by a directory that all see, HOST:PORT of rank 0, or pmi [default:
    /// TIDEWATER_RENDEZVOUS, or what the launcher offers].
    #[arg(long, value_name = "WHERE")]
    pub(crate) rendezvous: Option<String>,
    /// Launched: network interface with the address to listen on [default: TIDEWATER_INTERFACE, or the
    /// one that leads to rank 0].
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Option<String>,
    /// Alone: applier threads of each of those servers [default: 1]. Launched: those of the server in
    /// this process [default: TIDEWATER_APPLIERS, or as many as fit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) appliers: Option<u16>,
}

/// Arguments of the command `evaluate`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EvaluateArgs {
    /// File, directory or pattern with the records; each worker reads its part.
    #[arg(long, value_name = "FILES")]
    pub(crate) data: PathBuf,
    /// Directory of the saved model.
    #[arg(long, value_name = "DIR", required_unless_present = "observe")]
    pub(crate) load: Option<PathBuf>,
    /// Evaluate the model of a running job as an observer, which no worker waits for.
    #[arg(long, conflicts_with = "load")]
    pub(crate) observe: bool,
    /// With --observe: evaluate again after this many seconds, until the job ends.
    #[arg(long, value_name = "SECONDS", requires = "observe", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) every: Option<u32>,
    #[command(flatten)]
    pub(crate) format: DataArgs,
    /// Append the figures to this file, a line of JSON for each evaluation.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// Arguments of the command `predict`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PredictArgs {
    /// File, directory or pattern with the records. Labels are ignored.
    #[arg(long, value_name = "FILES")]
    pub(crate) data: PathBuf,
    /// Directory of the saved model.
    #[arg(long, value_name = "DIR")]
    pub(crate) load: PathBuf,
    /// Directory of the output: a file for each part, with a line for each record. If a prediction of the
    /// same data by the same model was begun there, it is completed.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Number of parts [default: four for each worker].
    #[arg(long, value_name = "N")]
    pub(crate) parts: Option<NonZeroU32>,
    /// Write all parts into one file too.
    #[arg(long, value_name = "FILE")]
    pub(crate) merge: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) format: DataArgs,
    /// Append a line of JSON for each part to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) job: JobArgs,
}

impl DataArgs {
    /// Options of the readers.
    pub(crate) fn options(&self) -> ReadOptions {
        ReadOptions {
            format: self.format.0,
            labels: self.positive.map_or(self.labels, LabelMap::OneVsRest),
            schema: self.schema.clone(),
            bad_records: self.bad_records,
        }
    }
}

/// Arguments of the command `generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Number of rows to write.
    #[arg(long, value_name = "N")]
    pub(crate) rows: u64,
    /// Number of the first row: a training and a test set are two ranges of one set's rows.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) first: u64,
    /// File to write, in LIBSVM format.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Seed of the set: equal seeds, equal bytes, on every machine.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Number of features of the set.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) features: u32,
}

/// A data format, or `auto`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FormatChoice(pub(crate) Option<Format>);

fn format(text: &str) -> Result<FormatChoice, String> {
    match text {
        "auto" => Ok(FormatChoice(None)),
        name => match name.parse() {
            Ok(format) => Ok(FormatChoice(Some(format))),
            Err(_) => Err(
                "not a format; use auto, libsvm, libsvm0, libsvm-bare, dummy, dense, dense:C or csv".into(),
            ),
        },
    }
}

fn schema(text: &str) -> Result<Schema, String> {
    let items = match text.strip_prefix('@') {
        None => text.to_owned(),
        Some(path) => {
            std::fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"))?
        }
    };
    items.parse().map_err(|e: SchemaError| e.to_string())
}

fn namespace(text: &str) -> Result<String, String> {
    let fits = (1..=NAMESPACE_BYTES_MAX).contains(&text.len());
    if fits && !text.chars().any(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "not a name of 1 to {NAMESPACE_BYTES_MAX} bytes without control characters"
        ))
    }
}

fn two_classes(text: &str) -> Result<LabelMap, String> {
    match text.parse() {
        Ok(labels @ (LabelMap::Binary | LabelMap::Above(_))) => Ok(labels),
        _ => Err("not binary, nor above:T with a finite number T".into()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && number < f64::from(f32::MAX) => Ok(number),
        _ => Err("not a number above 0".into()),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..f64::from(f32::MAX)).contains(&number) => Ok(number),
        _ => Err("not a number from 0".into()),
    }
}

fn not_negative32(text: &str) -> Result<f32, String> {
    not_negative(text).map(|number| number as f32)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_the_trainers() {
        let Command::Lr(lr) = parse("t lr --train a").unwrap().command else {
            panic!("not lr");
        };
        assert_eq!(lr.optimizer(), Ok(defaults::ADAGRAD));
        assert_eq!(lr.common.sync, SyncMode::Bsp);
        let Command::Ftrl(ftrl) = parse("t ftrl --train a --sync ssp:2").unwrap().command else {
            panic!("not ftrl");
        };
        assert_eq!(ftrl.optimizer(), defaults::FTRL);
        assert_eq!(ftrl.common.sync, SyncMode::Ssp(2));
        let Command::Lr(sgd) = parse("t lr --train a --optimizer sgd").unwrap().command else {
            panic!("not lr");
        };
        assert_eq!(sgd.optimizer(), Ok(defaults::SGD));
    }

    #[test]
    fn l1_is_for_rules_with_an_l1_step() {
        let rule_of = |flags: &str| {
            let Command::Lr(lr) = parse(&format!("t lr --train a {flags}")).unwrap().command else {
                panic!("not lr");
            };
            lr.optimizer()
        };
        assert_eq!(
            rule_of("--optimizer sgd --l1 0.5"),
            Ok(Optimizer::ProximalSgd { lr: 0.1, l1: 0.5 })
        );
        let adagrad = Optimizer::ProximalAdaGrad {
            lr: 0.2,
            eps: 1e-8,
            l1: 0.5,
        };
        assert_eq!(rule_of("--lr 0.2 --l1 0.5"), Ok(adagrad));
        let adadelta = rule_of("--optimizer adadelta").unwrap();
        assert_eq!((adadelta.name(), adadelta.rate()), ("AdaDelta", 1.0));
        for rule in ["momentum", "adam", "adadelta"] {
            let refused = rule_of(&format!("--optimizer {rule} --l1 1")).unwrap_err();
            assert!(refused.to_string().contains("use sgd or adagrad"));
        }
    }

    #[test]
    fn wrong_flags_say_what_would_be_right() {
        for (line, part) in [
            ("t lr", "--train"),
            ("t lr --train a --sync bulk", "use bsp, asp, or ssp:S"),
            (
                "t lr --train a --format xml",
                "use auto, libsvm, libsvm0, libsvm-bare, dummy, dense",
            ),
            (
                "t lr --train a --schema a:label,b",
                "`a:label,b` is no item of a schema",
            ),
            ("t lr --train a --schema @none", "cannot read none"),
            (
                "t lr --train a --bad-records skip:2",
                "use fail, or skip:RATIO",
            ),
            ("t lr --train a --lr 0", "not a number above 0"),
            ("t lr --train a --lr nan", "not a number above 0"),
            ("t ftrl --train a --l1 -1", "not a number from 0"),
            ("t lr --train a --batch 0", "non-zero"),
            ("t lr --train a --schedule step:2", "use constant, step:"),
            (
                "t lr --train a --transport ib",
                "use auto, shm, tcp or verbs",
            ),
            ("t lr --train a --test-each-epoch", "--test"),
            ("t lr --train a --workers 0", "not in 1..=65536"),
            ("t lr --train a --namespace=", "not a name of 1 to 64 bytes"),
        ] {
            let e = parse(line).unwrap_err();
            assert_eq!(e.exit_code(), 2, "{line}");
            assert!(e.to_string().contains(part), "{line}: {e}");
        }
    }
}
