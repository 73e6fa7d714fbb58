//! Stages and their budgets: ci/budget.toml.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use crate::failure::{Failure, Result};

/// Limits of the whole run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    pub(crate) budget_s: u64,
    /// A stage that has not run by then has failed.
    pub(crate) hard_s: u64,
    /// Factor of timeouts with `--full`.
    pub(crate) full_factor: u64,
}

/// Stage: a script and what is expected of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stage {
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) script: String,
    /// What it shows, for the table.
    pub(crate) does: String,
    pub(crate) budget_s: u64,
    timeout_s: u64,
    /// Whether having nothing to run is a failure.
    #[serde(default)]
    pub(crate) required: bool,
    /// Groups of tests of which each must have passed at least one.
    #[serde(default)]
    groups: String,
    #[serde(default)]
    sets_up: bool,
    #[serde(default = "one")]
    pub(crate) tries: u32,
    /// Stages that must have passed before this one is tried.
    #[serde(default)]
    needs: String,
    /// Stages next to which this one may run.
    #[serde(default)]
    beside: String,
}

fn one() -> u32 {
    1
}

impl Stage {
    pub(crate) fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.split_whitespace()
    }

    pub(crate) fn needs(&self) -> impl Iterator<Item = &str> {
        self.needs.split_whitespace()
    }

    /// Whether both stages may run at the same time.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        let names = |own: &Self, name: &str| own.beside.split_whitespace().any(|own| own == name);
        names(self, &other.name) || names(other, &self.name)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    run: Limits,
    #[serde(default)]
    stage: BTreeMap<String, Spanned<Stage>>,
}

/// Stages in the order of the file, and the limits of the whole run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) limits: Limits,
    pub(crate) stages: Vec<Stage>,
    /// Whether counts are larger: timeouts have the factor, and budgets do not hold.
    pub(crate) full: bool,
}

impl Plan {
    pub(crate) fn new(path: &str, text: &str) -> Result<Self> {
        let malformed = |subject: String, problem: String| Failure::Malformed {
            subject,
            problem,
            remedy: "the keys are described at the top of ci/budget.toml".to_owned(),
        };
        let file: File =
            toml::from_str(text).map_err(|error| malformed(path.to_owned(), error.to_string()))?;
        let mut found: Vec<_> = file.stage.into_iter().collect();
        found.sort_by_key(|(_, stage)| stage.span().start);
        let stages: Vec<Stage> = found
            .into_iter()
            .map(|(name, stage)| Stage {
                name,
                ..stage.into_inner()
            })
            .collect();
        if stages.is_empty() {
            return Err(malformed(path.to_owned(), "no stages".to_owned()));
        }
        // A second try of a check hides races.
        if let Some(stage) = stages
            .iter()
            .find(|stage| stage.tries > 1 && !stage.sets_up)
        {
            return Err(malformed(
                format!("stage {}", stage.name),
                "tries is for stages that set up (sets_up = true)".to_owned(),
            ));
        }
        let known = |name: &str| stages.iter().any(|stage| stage.name == name);
        for stage in &stages {
            let named = stage.needs().chain(stage.beside.split_whitespace());
            if let Some(name) = named.into_iter().find(|name| !known(name)) {
                let problem = format!("there is no stage {name}");
                return Err(malformed(format!("stage {}", stage.name), problem));
            }
        }
        Ok(Self {
            limits: file.run,
            stages,
            full: false,
        })
    }

    /// Keeps the stages of these names, if there are any; they run in the order of the names.
    pub(crate) fn only(&mut self, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let mut chosen = Vec::new();
        for name in names {
            let stage = self.stages.iter().find(|stage| stage.name == *name);
            chosen.push(stage.cloned().ok_or_else(|| Failure::Malformed {
                subject: format!("--only {name}"),
                problem: "no such stage".to_owned(),
                remedy: format!("name one of {}", self.names().join(" ")),
            })?);
        }
        self.stages = chosen;
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        self.stages
            .iter()
            .map(|stage| stage.name.as_str())
            .collect()
    }

    /// Time that a stage has: its timeout, or what is left of the whole run if that is less.
    pub(crate) fn allowed(&self, stage: &Stage, elapsed: Duration) -> Duration {
        let factor = if self.full {
            self.limits.full_factor
        } else {
            1
        };
        let own = Duration::from_secs(stage.timeout_s * factor);
        own.min(Duration::from_secs(self.limits.hard_s * factor).saturating_sub(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "[run]\nbudget_s = 60\nhard_s = 100\nfull_factor = 8\n";

    fn plan(stages: &str) -> Result<Plan> {
        Plan::new("b.toml", &format!("{RUN}{stages}"))
    }

    fn stage(name: &str, keys: &str) -> String {
        format!(
            "[stage.{name}]\nscript = \"s\"\ndoes = \"d\"\nbudget_s = 5\ntimeout_s = 20\n{keys}\n"
        )
    }

    #[test]
    fn stages_keep_the_order_of_the_file() {
        let text = ["z", "a", "m"].map(|name| stage(name, "")).concat();
        assert_eq!(plan(&text).unwrap().names(), ["z", "a", "m"]);
    }

    #[test]
    fn chosen_stages_are_in_the_order_of_the_names() {
        let mut plan = plan(&["z", "a", "m"].map(|name| stage(name, "")).concat()).unwrap();
        plan.only(&[]).unwrap();
        assert_eq!(plan.names().len(), 3);
        let error = plan.only(&["x".into()]).unwrap_err().to_string();
        assert_eq!(error, "--only x: no such stage; name one of z a m");
        plan.only(&["m".into(), "z".into()]).unwrap();
        assert_eq!(plan.names(), ["m", "z"]);
    }

    #[test]
    fn checks_have_one_try() {
        let error = plan(&stage("check", "tries = 2")).unwrap_err().to_string();
        assert!(
            error.starts_with("stage check: tries is for stages that set up"),
            "{error}"
        );
        assert_eq!(
            plan(&stage("a", "tries = 2\nsets_up = true"))
                .unwrap()
                .stages[0]
                .tries,
            2
        );
    }

    #[test]
    fn unknown_names_and_keys_are_refused() {
        for keys in ["needs = \"b\"", "beside = \"b\"", "colour = 1"] {
            assert!(plan(&stage("a", keys)).is_err(), "{keys}");
        }
        assert!(plan("").is_err());
    }

    #[test]
    fn timeout_is_what_is_left_of_the_run() {
        let mut plan = plan(&stage("a", "")).unwrap();
        let allowed = |plan: &Plan, elapsed| {
            plan.allowed(&plan.stages[0], Duration::from_secs(elapsed))
                .as_secs()
        };
        assert_eq!(
            [0, 90, 200].map(|elapsed| allowed(&plan, elapsed)),
            [20, 10, 0]
        );
        plan.full = true;
        assert_eq!(allowed(&plan, 0), 160);
    }

    #[test]
    fn stages_go_together_if_one_names_the_other() {
        let text = [stage("a", ""), stage("b", "beside = \"a\""), stage("c", "")].concat();
        let plan = plan(&text).unwrap();
        let [a, b, c] = &plan.stages[..] else {
            panic!()
        };
        assert!(a.goes_with(b) && b.goes_with(a) && !a.goes_with(c));
    }

    #[test]
    fn file_of_the_project_is_sound() {
        let root = crate::tree::root().unwrap();
        let text = crate::binaries::read(&root, "ci/budget.toml").unwrap();
        let plan = Plan::new("ci/budget.toml", &text).unwrap();
        assert_eq!(plan.names().first(), Some(&"setup"));
        let sum: u64 = plan.stages.iter().map(|stage| stage.timeout_s).sum();
        assert!(sum >= plan.limits.budget_s, "{sum}");
    }
}
