//! The command `tidewater-train generate`.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::process::ExitCode;

use tidewater_train::exit;
use tidewater_train::generate::{Synthetic, SyntheticSpec};

use crate::Failure;
use crate::args::GenerateArgs;

pub(crate) fn run(args: &GenerateArgs) -> Result<ExitCode, Failure> {
    let spec = SyntheticSpec {
        features: args.features,
        seed: args.seed,
        ..SyntheticSpec::default()
    };
    let set = Synthetic::new(spec).map_err(Failure::usage)?;
    let end = args.first.checked_add(args.rows);
    let end = end.ok_or_else(|| Failure::usage("--first plus --rows is above 2^64"))?;
    let write = || {
        let mut out = BufWriter::new(File::create(&args.out)?);
        set.write_libsvm(args.first..end, &mut out)?;
        out.flush()
    };
    write().map_err(|e| {
        let what = format!("cannot write {}: {e}", args.out.display());
        Failure::new(exit::ENVIRONMENT, what)
    })?;
    Ok(ExitCode::SUCCESS)
}
