//! `report`: one page with charts from the JSON of one or several runs. The page is self-contained:
//! drawings are inline SVG, and it loads and runs nothing.

mod chart;
pub(super) mod html;
mod judge;
mod page;
mod pictures;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::error::BenchError;
use crate::sheet::{Document, Failures, read_json};

/// Options of the subcommand `report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Files that --json wrote
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// File to write the page to
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub html: PathBuf,
}

/// A run and its name on the page.
#[derive(Debug)]
pub(crate) struct Run {
    /// File name of the results without the extension.
    pub(crate) name: String,
    /// Results of the run.
    pub(crate) document: Document,
}

/// Runs `report`.
///
/// # Errors
/// If a file cannot be read, is not a result of this program, or cannot be written.
pub fn run(args: &ReportArgs) -> Result<Failures, BenchError> {
    let read = |path: &PathBuf| {
        Ok(Run {
            name: stem(path),
            document: read_json(path)?,
        })
    };
    let runs: Vec<Run> = args
        .files
        .iter()
        .map(read)
        .collect::<Result<_, BenchError>>()?;
    write(&args.html, &runs)?;
    Ok(Failures::new())
}

/// Writes the page of some runs.
///
/// # Errors
/// [`BenchError::File`] if the page cannot be written.
pub(crate) fn write(path: &Path, runs: &[Run]) -> Result<(), BenchError> {
    std::fs::write(path, page::page(runs)).map_err(|e| BenchError::file(path, e))
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}
