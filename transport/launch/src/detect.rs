//! Detection of the launcher that started this process, and of its data: a function of the environment
//! alone.
//!
//! Variables leak: a launched process may start another launcher, and all of a node's processes inherit the
//! variables of the batch system. So **the launcher closest to the process wins**, and the order of
//! [`detect`] is that of evidence for closeness:
//!
//! | order | source | why here |
//! |---|---|---|
//! | 1 | flags, then `TIDEWATER_*` | the user set them explicitly |
//! | 2 | PMI with a descriptor that is open | descriptors are not inherited through another launcher, variables are: Open MPI's daemon closes those of the launcher it was started by |
//! | 3 | Open MPI | `mpirun` inside a batch job inherits the batch system's variables, not the other way round |
//! | 4 | Flux | as 3, when it gives no PMI descriptor |
//! | 5 | Slurm | only of a step: in the script of `sbatch`, and so under `mpirun` in it, `SLURM_PROCID` is 0 in every process |
//! | 6 | torchrun, DMLC | names that any script may have exported |
//!
//! Only documented variables decide anything.

use super::environment::{DetectError, LaunchEnv};
use super::place::{Decision, Source};
use super::sources;

/// What a source (launcher) contributed to the decision: it made it, or passed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The source made the decision.
    Taken,
    /// The source does not decide, for this reason.
    Passed(String),
}

impl Verdict {
    /// Returns the verdict in words, for messages.
    pub fn text(&self) -> &str {
        match self {
            Self::Taken => "decides",
            Self::Passed(why) => why,
        }
    }
}

/// A source (launcher) that left traces in the environment: its variables, and what it contributed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The source of the traces.
    pub source: Source,
    /// Its variables, as they are.
    pub seen: Vec<(String, String)>,
    /// Result of the source.
    pub verdict: Verdict,
}

/// Result of [`detect`]: the decision, and the evidence of all sources for it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detection {
    /// All evidence found, closest first.
    pub findings: Vec<Finding>,
    /// The decision.
    ///
    /// # Errors
    /// The values of the closest launcher are impossible or insufficient.
    pub decision: Result<Decision, DetectError>,
}

/// Determines from the environment what this process is: alone, a member of a job, or one process of a launch.
/// The closest source (launcher) with usable traces decides. See the module for the order.
///
/// # Cost
/// Two dozen reads of variables; at most one check of a descriptor.
pub fn detect(around: &LaunchEnv<'_>) -> Detection {
    let mut findings = Vec::new();
    let mut decision: Option<Result<Decision, DetectError>> = None;
    for look in sources::ALL {
        let Some(sight) = look(around) else { continue };
        let verdict = match (&sight.says, &decision) {
            (sources::Evidence::Passed(why), _) => Verdict::Passed(why.clone()),
            (_, Some(_)) => Verdict::Passed("a closer one has decided".into()),
            (sources::Evidence::Decided(decided), None) => {
                decision = Some(decided.clone());
                Verdict::Taken
            }
        };
        findings.push(Finding {
            source: sight.source,
            seen: sight.seen,
            verdict,
        });
    }
    let decision = decision.unwrap_or(Ok(Decision::Alone));
    Detection { findings, decision }
}
