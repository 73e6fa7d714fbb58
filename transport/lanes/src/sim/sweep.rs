//! Running many seeds, and the command that repeats a failed one.

use std::ops::Range;

use super::world::Outcome;

/// Source location of a test, for the shell command that repeats a failed seed. Made by the macro
/// [`crate::here`].
#[derive(Debug, Clone, Copy)]
pub struct Here {
    /// The package, as cargo names it.
    pub package: &'static str,
    /// Type name of a function inside the test: crate, modules, test and `here`, joined by `::`.
    pub path: &'static str,
    /// File of the test.
    pub file: &'static str,
}

/// The location of the enclosing test, for [`sim::sweep`](crate::sim::sweep).
#[macro_export]
macro_rules! here {
    () => {{
        fn here() {}
        $crate::sim::Here {
            package: env!("CARGO_PKG_NAME"),
            path: ::std::any::type_name_of_val(&here),
            file: file!(),
        }
    }};
}

impl Here {
    /// Returns the shell command that runs this test again with the one seed `seed`: environment
    /// variables and `cargo test`.
    pub fn repeat(&self, seed: u64) -> String {
        let path = self
            .path
            .trim_end_matches("::here")
            .replace("::{{closure}}", "");
        let (unit, test) = path.split_once("::").unwrap_or(("", &path));
        let target = if self.file.contains("tests/") {
            format!("--test {unit}")
        } else {
            "--lib".to_owned()
        };
        let (plant, feature) = match std::env::var("TIDEWATER_MUTANT") {
            Ok(name) if cfg!(feature = "mutants") => {
                (format!("TIDEWATER_MUTANT={name} "), " --features mutants")
            }
            _ => (String::new(), ""),
        };
        format!(
            "{plant}TIDEWATER_SEED={seed} cargo test --profile ci -p {}{feature} {target} -- \
             --exact {test} --nocapture",
            self.package
        )
    }
}

/// Returns the range of seeds that a sweep runs: `usual`, unless the environment says otherwise.
/// `TIDEWATER_SEED` selects one seed; `TIDEWATER_SEEDS` selects that many from the start of `usual`.
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("TIDEWATER_SEED") {
        return seed..seed.saturating_add(1);
    }
    match number("TIDEWATER_SEEDS") {
        Some(count) => usual.start..usual.start.saturating_add(count),
        None => usual,
    }
}

/// Totals over all runs of a sweep; a sweep runs one world for each seed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Swept {
    /// Number of worlds run, one a seed.
    pub seeds: u64,
    /// Number of yield points passed.
    pub steps: u64,
    /// Number of task switches.
    pub switches: u64,
    /// Lanes that the adversary broke.
    pub breaks: u64,
}

/// Runs the simulation `world` once for each seed of [`seeds`], on this thread, and returns the totals.
/// `here` is the location of the test.
///
/// # Panics
/// When a run fails: the message has the failure and the command that repeats its seed.
pub fn sweep(here: Here, usual: Range<u64>, mut world: impl FnMut(u64) -> Outcome) -> Swept {
    let mut swept = Swept::default();
    for seed in seeds(usual) {
        let outcome = world(seed);
        if let Some(failure) = outcome.failure {
            panic!("seed {seed}: {failure}\nrepeat: {}", here.repeat(seed));
        }
        swept.seeds += 1;
        swept.steps += outcome.steps;
        swept.switches += outcome.switches;
        swept.breaks += outcome.breaks;
    }
    swept
}
