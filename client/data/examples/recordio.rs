//! Converts between lines of text and RecordIO files, in both layouts.
//!
//! `recordio write dmlc|none|snappy|gzip OUT < LINES` and `recordio read FILE > LINES`.

use std::io::{BufRead as _, BufWriter, Write as _};
use std::path::Path;

use tidewater_data::recordio::chunked::{CHUNK_BYTES, Compressor, Writer};
use tidewater_data::recordio::dmlc;
use tidewater_data::{DataSource as _, FileSource};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["write", layout, path] => write(layout, Path::new(path)),
        ["read", path] => read(Path::new(path)),
        _ => Err("usage: recordio write dmlc|none|snappy|gzip OUT, or recordio read FILE".into()),
    }
}

fn write(layout: &str, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    let lines = std::io::stdin().lock().split(b'\n');
    if layout == "dmlc" {
        for line in lines {
            dmlc::write_record(&mut out, &line?)?;
        }
        return Ok(out.flush()?);
    }
    let compressor = match layout {
        "none" => Compressor::None,
        "snappy" => Compressor::Snappy,
        "gzip" => Compressor::Gzip,
        _ => return Err(format!("no layout `{layout}`").into()),
    };
    let mut writer = Writer::new(out, compressor, CHUNK_BYTES);
    for line in lines {
        writer.write(&line?)?;
    }
    writer.finish()?;
    Ok(())
}

fn read(path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let source = FileSource::new(path, None)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    for shard in source.shards() {
        let mut records = source.open(shard)?;
        while records.advance()? {
            out.write_all(records.bytes())?;
            out.write_all(b"\n")?;
        }
    }
    Ok(out.flush()?)
}
