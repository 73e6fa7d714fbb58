//! The pushes of all workers and their fates: the expected final value of every row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

/// Known outcome of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The ticket returned applied: counts once.
    Acknowledged,
    /// The ticket returned refused: does not count.
    Refused,
    /// The ticket was dropped: counts once or not at all.
    Unknown,
}

#[derive(Debug, Default)]
struct Account {
    acknowledged: i64,
    unknown: Vec<i64>,
}

/// Accounts by table and row. Locked for moments only, never over a yield point.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<BTreeMap<(&'static str, u64), Account>>);

impl Ledger {
    fn accounts(&self) -> MutexGuard<'_, BTreeMap<(&'static str, u64), Account>> {
        self.0.lock().unwrap()
    }

    /// Records a push of `amount` to each of `rows`.
    pub fn enter(&self, table: &'static str, rows: &[u64], amount: i64, fate: Fate) {
        let mut accounts = self.accounts();
        for &row in rows {
            let account = accounts.entry((table, row)).or_default();
            match fate {
                Fate::Acknowledged => account.acknowledged += amount,
                Fate::Unknown => account.unknown.push(amount),
                Fate::Refused => {}
            }
        }
    }

    /// Panics unless `found` is the acknowledged sum plus some of the unknown pushes.
    pub fn check(&self, table: &'static str, row: u64, found: i64) {
        let accounts = self.accounts();
        let Some(account) = accounts.get(&(table, row)) else {
            assert_eq!(found, 0, "{table} row {row}: nobody pushed to it");
            return;
        };
        let mut may = BTreeSet::from([account.acknowledged]);
        for amount in &account.unknown {
            let with: Vec<i64> = may.iter().map(|sum| sum + amount).collect();
            may.extend(with);
        }
        assert!(
            may.contains(&found),
            "{table} row {row} holds {found}: acknowledged {}, unknown {:?}",
            account.acknowledged,
            account.unknown
        );
    }
}
