//! Which test may start next to those that run.

use std::collections::BTreeMap;

use super::classes::Class;

/// Tests that run, by class.
#[derive(Debug)]
pub(crate) struct Load {
    cores: usize,
    running: BTreeMap<Class, usize>,
}

impl Load {
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            cores,
            running: BTreeMap::new(),
        }
    }

    /// Whether a test of that class may start now. One always may where nothing runs.
    pub(crate) fn admits(&self, class: Class) -> bool {
        let count = |class| self.running.get(&class).copied().unwrap_or(0);
        let used: usize = self
            .running
            .iter()
            .map(|(class, count)| class.quarters() * count)
            .sum();
        if used == 0 {
            return true;
        }
        let alone = class == Class::Clock || count(Class::Clock) > 0;
        let taken = class.is_single() && count(class) > 0;
        !alone && !taken && used + class.quarters() <= 4 * self.cores
    }

    pub(crate) fn add(&mut self, class: Class) {
        *self.running.entry(class).or_insert(0) += 1;
    }

    pub(crate) fn remove(&mut self, class: Class) {
        if let Some(count) = self.running.get_mut(&class) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Takes the first waiting test that may start. Tests of class `clock` start once no other is left to start.
pub(crate) fn take(
    waiting: &mut Vec<usize>,
    class_of: impl Fn(usize) -> Class,
    load: &Load,
) -> Option<usize> {
    let only_clock = waiting.iter().all(|test| class_of(*test) == Class::Clock);
    let at = waiting.iter().position(|test| {
        let class = class_of(*test);
        (class != Class::Clock || only_clock) && load.admits(class)
    })?;
    Some(waiting.remove(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Class::{Clock, Cpu, Job, Wait};

    /// Tests that start at once of `classes`, and those that follow when all of these have ended.
    fn rounds(classes: &[Class], cores: usize) -> Vec<Vec<usize>> {
        let mut waiting: Vec<usize> = (0..classes.len()).collect();
        let mut rounds = Vec::new();
        while !waiting.is_empty() {
            let mut load = Load::new(cores);
            let mut round = Vec::new();
            while let Some(test) = take(&mut waiting, |test| classes[test], &load) {
                load.add(classes[test]);
                round.push(test);
            }
            rounds.push(round);
        }
        rounds
    }

    #[test]
    fn cores_limit_computing_tests() {
        assert_eq!(rounds(&[Cpu; 3], 2), [vec![0, 1], vec![2]]);
        assert_eq!(
            rounds(&[Cpu, Wait, Wait, Wait, Wait, Wait], 2),
            [vec![0, 1, 2, 3, 4, 5]]
        );
    }

    #[test]
    fn clocks_run_alone_after_the_others() {
        assert_eq!(
            rounds(&[Clock, Cpu, Clock, Wait], 2),
            [vec![1, 3], vec![0], vec![2]]
        );
    }

    #[test]
    fn jobs_run_one_at_a_time_next_to_others() {
        assert_eq!(
            rounds(&[Job, Job, Cpu, Cpu, Cpu], 2),
            [vec![0, 2, 3], vec![1, 4]]
        );
        assert_eq!(rounds(&[Job, Cpu], 1), [vec![0], vec![1]]);
    }

    #[test]
    fn ended_test_makes_room() {
        let mut load = Load::new(1);
        load.add(Cpu);
        assert!(!load.admits(Cpu));
        load.remove(Cpu);
        assert!(load.admits(Clock));
    }
}
