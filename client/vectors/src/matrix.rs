//! Operations on tables of rows as matrices: diagonals, triples of row, column and value, selected columns.

use std::collections::BTreeMap;

use tidewater::{Client, ClientError, Element, PullOptions, PushOp, Table, Ticket};
use tidewater_protocol::table::{Apply, DenseLayout, Shape};

/// Maximum bytes of rows that a call assembles at once.
const BATCH_BYTES: usize = 8 << 20;

/// An element of a matrix and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Triple<T> {
    /// Number of the row, or its key in a sparse table.
    pub row: u64,
    /// Number of the column.
    pub column: u32,
    /// Value of the element.
    pub value: T,
}

/// Assigns the identity: 1 where row and column are equal, 0 elsewhere. The matrix need not be square. The table has
/// layout `rows`, of any element type. The ticket is that of an assignment of all rows ([`Client::push_rows`]), of
/// which each takes effect by itself. Cost: the bytes of the matrix are sent.
///
/// # Errors
/// As [`assign_diagonal`].
///
/// # Examples
/// ```
/// use tidewater::{JoinOptions, PullOptions, SyncMode, TableBuilder};
/// use tidewater_vectors::matrix;
///
/// # fn main() -> Result<(), tidewater::ClientError> {
/// let job = JoinOptions::embedded(2, 1).join()?.into_job().expect("a worker");
/// let mut client = job.client(SyncMode::Asp)?;
/// let table = client.create_table::<f32>(TableBuilder::rows::<f32>("m", 2, 3).spec())?;
/// let ticket = matrix::assign_identity(&mut client, &table)?;
/// client.wait_applied(&ticket)?;
/// let mut rows = [0.0; 6];
/// client.pull_rows(&table, &[0, 1], &mut rows, PullOptions::default())?;
/// assert_eq!(rows, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
/// # client.finish()
/// # }
/// ```
pub fn assign_identity<T: Element + From<bool>>(
    client: &mut Client,
    table: &Table<T>,
) -> Result<Ticket, ClientError> {
    let rows = row_count(client, "assign_identity", table)?;
    let ones = vec![T::from(true); diagonal_len(rows, table.dim())];
    assign_diagonal(client, table, &ones)
}

/// Assigns a diagonal matrix: `values[i]` in row i and column i, 0 elsewhere. Otherwise as [`assign_identity`].
///
/// # Errors
/// [`ClientError::Argument`] for a table of another layout, or if there are not as many values as the smaller one of
/// the numbers of rows and columns; nothing was sent then. As [`Client::push_rows`].
pub fn assign_diagonal<T: Element>(
    client: &mut Client,
    table: &Table<T>,
    values: &[T],
) -> Result<Ticket, ClientError> {
    let op = "assign_diagonal";
    let rows = row_count(client, op, table)?;
    let dim = table.dim();
    let due = diagonal_len(rows, dim);
    if values.len() != due {
        let what = format!(
            "{} values for the diagonal of {rows} x {dim}; it has {due}",
            values.len()
        );
        return Err(refused(client, op, table, what));
    }
    let batch = rows_at_once(table) as u64;
    let mut ticket = Ticket::default();
    for first in (0..rows).step_by(batch as usize) {
        let keys: Vec<u64> = (first..rows.min(first + batch)).collect();
        let mut elements = vec![T::default(); keys.len() * dim];
        for (row, key) in elements.chunks_exact_mut(dim).zip(&keys) {
            let at = *key as usize;
            if let (Some(element), Some(value)) = (row.get_mut(at), values.get(at)) {
                *element = *value;
            }
        }
        ticket.merge(&client.push_rows(table, &keys, &elements, PushOp::Assign)?);
    }
    Ok(ticket)
}

/// Adds triples to a table with rows. Triples of one place add up. The rows are sent in one push per some megabytes
/// of them, each row a unit. Cost: each row that has a triple is sent in full.
///
/// # Errors
/// [`ClientError::Argument`] for a column outside the table: nothing was sent then. As [`Client::push_rows`].
pub fn add_triples<T: Element>(
    client: &mut Client,
    table: &Table<T>,
    triples: &[Triple<T>],
) -> Result<Ticket, ClientError> {
    let dim = table.dim();
    check_columns(
        client,
        "add_triples",
        table,
        triples.iter().map(|triple| triple.column),
    )?;
    // The second triple of a place is in a second copy of its row: a push adds up equal keys.
    let mut uses: BTreeMap<(u64, u32), u32> = BTreeMap::new();
    let mut rows: BTreeMap<(u64, u32), Vec<T>> = BTreeMap::new();
    let most = rows_at_once(table);
    let mut ticket = Ticket::default();
    for triple in triples {
        let copy = uses.entry((triple.row, triple.column)).or_default();
        let row = rows.entry((triple.row, *copy));
        row.or_insert_with(|| vec![T::default(); dim])[triple.column as usize] = triple.value;
        *copy += 1;
        if rows.len() >= most {
            ticket.merge(&push(client, table, &rows, PushOp::Sum)?);
            rows.clear();
            uses.clear();
        }
    }
    if !rows.is_empty() {
        ticket.merge(&push(client, table, &rows, PushOp::Sum)?);
    }
    Ok(ticket)
}

/// Assigns triples in a table with rows; of triples of one place the last one counts. The call first waits for all
/// pushes of this client. The other columns of the rows keep the values that it has pulled then: if another client
/// changes such a row between the pull and the push, its change is lost. So let one client assign to a row at a time.
/// Cost: a flush, a pull and a push of the rows.
///
/// # Errors
/// [`ClientError::Argument`] for a column outside the table, for a table that changes at ticks and for a client with an
/// open task, which do not show this client's own pushes: nothing was sent then. As [`Client::flush`],
/// [`Client::pull_rows`] and [`Client::push_rows`].
pub fn assign_triples<T: Element>(
    client: &mut Client,
    table: &Table<T>,
    triples: &[Triple<T>],
) -> Result<Ticket, ClientError> {
    let dim = table.dim();
    check_columns(
        client,
        "assign_triples",
        table,
        triples.iter().map(|triple| triple.column),
    )?;
    let effect = client.spec(table).map(|spec| spec.effect);
    if effect != Some(Apply::Immediate) || client.open_task().is_some() {
        let what = "the rows do not show this client's own pushes before a tick, or the end of its task; assign \
                    complete rows by push_rows";
        return Err(refused(client, "assign_triples", table, what.to_owned()));
    }
    client.flush()?;
    let mut by_row: BTreeMap<u64, Vec<&Triple<T>>> = BTreeMap::new();
    for triple in triples {
        by_row.entry(triple.row).or_default().push(triple);
    }
    let keys: Vec<u64> = by_row.keys().copied().collect();
    let most = rows_at_once(table);
    let mut ticket = Ticket::default();
    for keys in keys.chunks(most) {
        let mut rows = vec![T::default(); keys.len() * dim];
        client.pull_rows(table, keys, &mut rows, PullOptions::default())?;
        for (row, key) in rows.chunks_exact_mut(dim).zip(keys) {
            for triple in &by_row[key] {
                row[triple.column as usize] = triple.value;
            }
        }
        ticket.merge(&client.push_rows(table, keys, &rows, PushOp::Assign)?);
    }
    Ok(ticket)
}

/// Pulls selected columns of selected rows: `out` has `keys.len()` rows of `columns.len()` elements, in the order of
/// both. Keys and columns may repeat. Cost: the rows are pulled in full, some megabytes at a time; servers select
/// nothing, as they take no part in a pull.
///
/// # Errors
/// [`ClientError::Argument`] for a column outside the table or an `out` of another length: nothing was pulled then. As
/// [`Client::pull_rows`]; `out` may hold some of the rows then.
pub fn pull_columns<T: Element>(
    client: &mut Client,
    table: &Table<T>,
    keys: &[u64],
    columns: &[u32],
    out: &mut [T],
    options: PullOptions,
) -> Result<(), ClientError> {
    let op = "pull_columns";
    let dim = table.dim();
    check_columns(client, op, table, columns.iter().copied())?;
    let due = keys.len().saturating_mul(columns.len());
    if out.len() != due {
        let what = format!(
            "out has {} elements; {} rows of {} columns have {due}",
            out.len(),
            keys.len(),
            columns.len()
        );
        return Err(refused(client, op, table, what));
    }
    if columns.is_empty() {
        return Ok(());
    }
    let most = rows_at_once(table);
    for (keys, out) in keys.chunks(most).zip(out.chunks_mut(most * columns.len())) {
        let mut rows = vec![T::default(); keys.len() * dim];
        client.pull_rows(table, keys, &mut rows, options)?;
        for (row, out) in rows
            .chunks_exact(dim)
            .zip(out.chunks_exact_mut(columns.len()))
        {
            for (element, column) in out.iter_mut().zip(columns) {
                *element = row[*column as usize];
            }
        }
    }
    Ok(())
}

fn push<T: Element>(
    client: &mut Client,
    table: &Table<T>,
    rows: &BTreeMap<(u64, u32), Vec<T>>,
    op: PushOp,
) -> Result<Ticket, ClientError> {
    let keys: Vec<u64> = rows.keys().map(|(row, _)| *row).collect();
    let elements: Vec<T> = rows.values().flatten().copied().collect();
    client.push_rows(table, &keys, &elements, op)
}

/// Number of rows that a call assembles at once.
fn rows_at_once<T: Element>(table: &Table<T>) -> usize {
    (BATCH_BYTES / (table.dim() * size_of::<T>())).max(1)
}

/// Number of rows of a table of layout `rows`.
fn row_count<T: Element>(
    client: &Client,
    op: &'static str,
    table: &Table<T>,
) -> Result<u64, ClientError> {
    match client.spec(table).map(|spec| spec.shape) {
        Some(Shape::Dense {
            rows,
            layout: DenseLayout::Rows,
            ..
        }) => Ok(rows),
        _ => {
            let what = "the table has no numbered rows; create it by TableBuilder::rows".to_owned();
            Err(refused(client, op, table, what))
        }
    }
}

fn diagonal_len(rows: u64, columns: usize) -> usize {
    usize::try_from(rows).map_or(columns, |rows| rows.min(columns))
}

fn check_columns<T: Element>(
    client: &Client,
    op: &'static str,
    table: &Table<T>,
    mut columns: impl Iterator<Item = u32>,
) -> Result<(), ClientError> {
    let dim = table.dim();
    match columns.find(|column| *column as usize >= dim) {
        Some(column) => {
            let what = format!("column {column} of a table with {dim} columns");
            Err(refused(client, op, table, what))
        }
        None => Ok(()),
    }
}

fn refused<T: Element>(
    client: &Client,
    op: &'static str,
    table: &Table<T>,
    what: String,
) -> ClientError {
    let name = client.spec(table).map(|spec| spec.name.clone());
    ClientError::Argument {
        op,
        table: name.unwrap_or_else(|| "of another client".to_owned()),
        what,
    }
}
