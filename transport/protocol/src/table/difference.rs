//! What differs between two definitions of one table, in words.

use super::TableSpec;
use crate::limits::PARTITIONS_AUTO;

/// Lists the fields in which two definitions of one table differ, for an error text; `None` if they agree. Names are
/// not compared. `PARTITIONS_AUTO` in `want` agrees with any number of partitions, but if `want` lists servers or
/// starts of partitions, it stands for the length of the list.
pub fn difference(have: &TableSpec, want: &TableSpec) -> Option<String> {
    if have == want {
        return None;
    }
    if want.partitions == PARTITIONS_AUTO && have.partitions != PARTITIONS_AUTO {
        // A list has at least one server; decoders check that.
        let listed = want.listed_partitions();
        let partitions = listed.unwrap_or(have.partitions).max(1);
        let want = TableSpec {
            partitions,
            ..want.clone()
        };
        return difference(have, &want);
    }
    let mut fields = Vec::new();
    macro_rules! compare {
        ($($field:ident)*) => {$(
            if have.$field != want.$field {
                let name = stringify!($field);
                fields.push(format!("{name} is {:?}, asked for {:?}", have.$field, want.$field));
            }
        )*};
    }
    compare!(shape dtype optimizer init seed effect finite_check domain partitions gradient redo keys versions
        durability);
    fields.extend(list_difference(
        "partition_servers",
        ("on", "server "),
        have.partition_servers.as_deref(),
        want.partition_servers.as_deref(),
    ));
    fields.extend(list_difference(
        "partition_starts",
        ("at", ""),
        have.partition_starts.as_deref(),
        want.partition_starts.as_deref(),
    ));
    Some(format!("table \"{}\": {}", have.name, fields.join("; ")))
}

/// Describes the first difference of two lists of the field `name`, with an entry for each partition; `None` if they
/// agree. The words `at` and `thing` precede an entry in the text, such as "on" and "server " in "on server 2".
fn list_difference<T: PartialEq + std::fmt::Display>(
    name: &str,
    (at, thing): (&str, &str),
    have: Option<&[T]>,
    want: Option<&[T]>,
) -> Option<String> {
    let (have, want) = match (have, want) {
        (Some(have), Some(want)) => (have, want),
        (None, None) => return None,
        (None, Some(_)) => return Some(format!("{name} is None, asked for a list")),
        (Some(_), None) => return Some(format!("{name} is a list, asked for None")),
    };
    let mut pairs = (0..).zip(have.iter().zip(want));
    match pairs.find(|(_, (have, want))| have != want) {
        Some((partition, (have, want))) => Some(format!(
            "{name} has partition {partition} {at} {thing}{have}, asked for {thing}{want}"
        )),
        None if have.len() == want.len() => None,
        None => {
            let (have, want) = (have.len(), want.len());
            Some(format!("{name} has {have} entries, asked for {want}"))
        }
    }
}
