//! Encoded pushes: their bytes, their values, and the error feedback of the client.

use super::*;
use tidewater::{Element, PushEncoding};
use tidewater_protocol::layout::encoding::encode;
use tidewater_protocol::table::DType;
use tidewater_testkit::faults::{Faults, seed};

const ENCODINGS: [PushEncoding; 3] = [PushEncoding::Bf16, PushEncoding::F16, PushEncoding::INT8];
/// Rate 1: a step subtracts what arrives.
const SGD: Optimizer = Optimizer::Sgd { lr: 1.0 };

fn of(encoding: PushEncoding) -> PushOptions {
    PushOptions::default().encoding(encoding)
}

/// A range table of one element a row, with blocks of 4 KiB.
fn ranges<T: Element>(client: &mut Client, name: &str, elements: u64) -> Table<T> {
    let table = TableBuilder::range::<T>(name, elements, 1);
    let table = table.block_bytes(4096).optimizer(SGD).partitions(4);
    client.create_table(table.spec()).unwrap()
}

/// Frames of 16-bit floats have half of the bytes of `f32`, those of bytes a quarter and their scales.
#[test]
fn encoded_pushes_are_smaller() {
    const ELEMENTS: usize = 64 << 10;
    let cluster = Cluster::start(transports()[0], 1, 2, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let table = ranges::<f32>(&mut client, "t", ELEMENTS as u64);
    let values: Vec<f32> = (0..ELEMENTS).map(|n| (n as f32 * 0.1).sin()).collect();
    let mut bytes = |encoding| {
        let before = client.counters().bytes_pushed;
        let pushed = client.push_range_with(&table, 0, &values, PushOp::Sum, of(encoding));
        client.wait_applied(&pushed.unwrap()).unwrap();
        (client.counters().bytes_pushed - before) as f64
    };
    let exact = bytes(PushEncoding::Exact);
    for (encoding, share) in ENCODINGS.into_iter().zip([0.5, 0.5, 0.2656]) {
        let share_of = bytes(encoding) / exact;
        assert!((share_of - share).abs() < 0.01, "{encoding:?}: {share_of}");
    }
}

/// Values that an encoding has are exact, at every length and in every kind of table, on arrival and at
/// the tick; so are those of a push without room for residuals, whatever they are. A weight is a factor.
#[test]
fn encoded_pushes_arrive() {
    let tick = |table: TableBuilder| table.at_clock(Reduce::Sum);
    for transport in transports() {
        for at_tick in [false, true] {
            let cluster = Cluster::start(transport, 1, 2, 1);
            let mut client = cluster.client(0, SyncMode::Bsp);
            arrive::<f32>(&mut client, at_tick.then_some(tick));
            client.set_residual_bytes_max(0);
            arrive::<f64>(&mut client, at_tick.then_some(tick));
        }
    }
}

fn arrive<T: Element + From<f32> + PartialEq + std::fmt::Debug>(
    client: &mut Client,
    tick: Option<fn(TableBuilder) -> TableBuilder>,
) {
    let name = |kind: &str| format!("{kind} of {:?}", T::DTYPE);
    let kinds = [
        TableBuilder::sparse::<T>(&name("sparse"), 7),
        TableBuilder::rows::<T>(&name("rows"), 40, 7),
        TableBuilder::range::<T>(&name("ranges"), 40, 7).block_bytes(4096),
    ];
    for (kind, builder) in kinds.into_iter().enumerate() {
        let builder = builder.optimizer(SGD).partitions(2);
        let builder = tick.map_or(builder.clone(), |tick| tick(builder.clone()));
        let table = client.create_table::<T>(builder.spec()).unwrap();
        let mut want = [0.0f32; 7];
        for encoding in ENCODINGS {
            for (elements, weight) in [(7, 1.0), (1, 0.5), (3, 2.0), (7, 0.25)] {
                // Steps of a scale of 1, if the whole frame is one block: 127 is its largest value.
                let values = [127.0f32, -2.0, 0.0, 64.0, -127.0, 5.0, 1.0];
                let options = of(encoding).weight(weight);
                let given = values.map(T::from);
                let pushed = match kind {
                    2 => client.push_range_with(
                        &table,
                        21,
                        &given[..elements],
                        PushOp::Gradient,
                        options,
                    ),
                    _ => client.push_rows_with(&table, &[3], &given, PushOp::Gradient, options),
                };
                client.wait_applied(&pushed.unwrap()).unwrap();
                let touched = if kind == 2 { elements } else { 7 };
                for (want, value) in want.iter_mut().zip(values).take(touched) {
                    *want -= weight as f32 * value;
                }
            }
        }
        client.tick().unwrap();
        let (mut out, pull) = ([T::from(0.0); 7], PullOptions::default());
        match kind {
            2 => client.pull_range(&table, 21, &mut out, pull),
            _ => client.pull_rows(&table, &[3], &mut out, pull),
        }
        .unwrap();
        assert_eq!(
            out,
            want.map(T::from),
            "{} kind {kind}",
            builder.spec().name
        );
    }
}

/// What a push leaves out arrives with later ones: the sum of many pushes is off by one rounding, in rows
/// and in ranges. Operations have residuals of their own.
#[test]
fn residuals_arrive_with_later_pushes() {
    const PUSHES: u32 = 300;
    let cluster = Cluster::start(transports()[0], 1, 2, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    for (n, encoding) in ENCODINGS.into_iter().enumerate() {
        let rows = TableBuilder::sparse::<f64>(&format!("rows {n}"), 3).optimizer(SGD);
        let rows = client.create_table::<f64>(rows.spec()).unwrap();
        let vector = ranges::<f64>(&mut client, &format!("ranges {n}"), 3000);
        let mut sum = [0.0; 6];
        for step in 0..PUSHES {
            let value = |n: u32| (f64::from(step * 7 + n) * 0.37).sin() + 0.01;
            let values: [f64; 6] = std::array::from_fn(|n| value(n as u32));
            // Two rows; and a range over two pages of residuals.
            let pushed = client.push_rows_with(&rows, &[9, 4], &values, PushOp::Sum, of(encoding));
            drop(pushed.unwrap());
            let pushed = client.push_range_with(&vector, 1021, &values, PushOp::Sum, of(encoding));
            drop(pushed.unwrap());
            let gradient = values.map(|v| -v);
            let pushed =
                client.push_range_with(&vector, 1021, &gradient, PushOp::Gradient, of(encoding));
            drop(pushed.unwrap());
            sum.iter_mut().zip(values).for_each(|(sum, v)| *sum += v);
        }
        client.flush().unwrap();
        let (mut out, pull) = ([0.0; 6], PullOptions::default());
        client.pull_rows(&rows, &[9, 4], &mut out, pull).unwrap();
        near(&out, &sum, 0.01, encoding);
        client.pull_range(&vector, 1021, &mut out, pull).unwrap();
        near(&out, &sum.map(|v| 2.0 * v), 0.02, encoding);
    }
}

fn near(found: &[f64], want: &[f64], bound: f64, encoding: PushEncoding) {
    for (found, want) in found.iter().zip(want) {
        assert!(
            (found - want).abs() < bound,
            "{encoding:?}: {found} for {want}"
        );
    }
}

/// What cannot be encoded is refused, and nothing is sent. A value that is not finite would stay in the
/// residuals.
#[test]
fn encodings_are_of_finite_floats() {
    let cluster = Cluster::start(transports()[0], 1, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let integers = TableBuilder::sparse::<i64>("integers", 1);
    let integers = client.create_table::<i64>(integers.spec()).unwrap();
    let rows = TableBuilder::sparse::<f32>("rows", 2)
        .optimizer(SGD)
        .finite_check(false);
    let rows = client.create_table::<f32>(rows.spec()).unwrap();
    let vector = ranges::<f32>(&mut client, "ranges", 100);
    let before = client.counters().frames;
    let (sum, bf16) = (PushOp::Sum, of(PushEncoding::Bf16));
    let text = |refused: Result<Ticket, ClientError>| match refused {
        Err(e @ ClientError::Argument { .. }) => e.to_string(),
        other => panic!("not refused: {other:?}"),
    };
    let refused = text(client.push_rows_with(&integers, &[1], &[2], sum, bf16));
    assert!(refused.contains("holds I64"), "{refused}");
    let assign = PushOp::Assign;
    let refused = text(client.push_rows_with(&rows, &[1], &[2.0, 1.0], assign, bf16));
    assert!(refused.contains("push Assign without"), "{refused}");
    for block in [0, 7, 65_537] {
        let odd = of(PushEncoding::Int8 { block });
        let refused = text(client.push_rows_with(&rows, &[1], &[2.0, 1.0], sum, odd));
        assert!(refused.contains("8 to 65536"), "{refused}");
    }
    for bad in [f32::NAN, f32::INFINITY] {
        let values = [1.0, 2.0, 3.0, bad];
        let refused = text(client.push_rows_with(&rows, &[5, 6], &values, sum, bf16));
        assert!(refused.contains("row 6 is not finite"), "{refused}");
        let refused = text(client.push_range_with(&vector, 50, &values, sum, bf16));
        assert!(refused.contains("element 53 is not finite"), "{refused}");
    }
    assert_eq!(client.counters().frames, before, "nothing was sent");
}

/// Encoded pushes with weights count once each while lanes break: all values are exact.
#[test]
fn encoded_pushes_count_once_over_broken_lanes() {
    for transport in transports() {
        let cluster = Cluster::start(transport, 2, 2, 1);
        let faults = Faults::new(seed(), 12);
        let lanes = faults.clone();
        let mut client = cluster.client_with(0, SyncMode::Asp, move |lane| lanes.wrap(lane, true));
        let rows = TableBuilder::sparse::<f32>("rows", 2).partitions(4);
        let rows = client.create_table::<f32>(rows.spec()).unwrap();
        let mut want = 0.0;
        for step in 0..200u32 {
            let encoding = ENCODINGS[step as usize % 3];
            let options = of(encoding).weight(f64::from(1 + step % 4));
            let pushed = client.push_rows_with(
                &rows,
                &[1, 2, 3, 4],
                &[127.0, -127.0].repeat(4),
                PushOp::Sum,
                options,
            );
            drop(pushed.unwrap());
            want += (1 + step % 4) as f32 * 127.0;
        }
        client.flush().unwrap();
        let mut out = [0.0; 8];
        let pull = PullOptions::default();
        client
            .pull_rows(&rows, &[1, 2, 3, 4], &mut out, pull)
            .unwrap();
        assert_eq!(out.to_vec(), [want, -want].repeat(4), "{transport}");
        assert!(faults.broken() > 5, "{} lanes broke", faults.broken());
    }
}

/// A regression by int8 gradients with feedback ends within 0.001 of the loss of `f32`. Without feedback,
/// by the same roundings of each gradient alone, it ends above 0.005: a noisy element sets the scale, and
/// smaller gradients than half a step never arrive.
#[test]
fn int8_training_reaches_the_loss_of_f32() {
    let cluster = Cluster::start(transports()[0], 1, 1, 1);
    let mut client = cluster.client(0, SyncMode::Asp);
    let losses = [
        train(&mut client, "exact", |client, table, g| {
            client.push_range(table, 0, g, PushOp::Gradient)
        }),
        train(&mut client, "feedback", |client, table, g| {
            client.push_range_with(table, 0, g, PushOp::Gradient, of(PushEncoding::INT8))
        }),
        train(&mut client, "no feedback", |client, table, g| {
            let mut rounded: Vec<f64> = g.iter().map(|&g| g.into()).collect();
            encode(
                PushEncoding::INT8,
                DType::F32,
                &mut rounded,
                &mut Vec::new(),
            );
            let rounded: Vec<f32> = rounded.iter().map(|&g| g as f32).collect();
            client.push_range(table, 0, &rounded, PushOp::Gradient)
        }),
    ];
    let [exact, feedback, none] = losses;
    assert!(feedback < exact + 0.001, "{losses:?}");
    assert!(none > exact + 0.005, "{losses:?}");
}

/// Trains `y = w x` by the gradient of all samples; one more element has a gradient of noise. Returns the
/// mean square error, which begins above 1.
fn train(
    client: &mut Client,
    name: &str,
    push: impl Fn(&mut Client, &Table<f32>, &[f32]) -> Result<Ticket, ClientError>,
) -> f64 {
    const FEATURES: usize = 16;
    const SAMPLES: usize = 64;
    let table = TableBuilder::range::<f32>(name, FEATURES as u64 + 1, 1);
    let table = table
        .block_bytes(4096)
        .optimizer(Optimizer::Sgd { lr: 0.5 });
    let table = client.create_table::<f32>(table.spec()).unwrap();
    let mut random = tidewater_testkit::faults::Rng(11);
    let mut uniform = || random.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0;
    let truth: [f64; FEATURES] = std::array::from_fn(|_| uniform());
    let samples: [[f64; FEATURES]; SAMPLES] =
        std::array::from_fn(|_| std::array::from_fn(|_| uniform()));
    let mut w = [0.0f32; FEATURES + 1];
    let error = |w: &[f32], x: &[f64]| {
        let parts = x.iter().zip(w).zip(&truth);
        parts
            .map(|((x, w), t)| x * (f64::from(*w) - t))
            .sum::<f64>()
    };
    for step in 0..120 {
        let mut g = [0.0f64; FEATURES + 1];
        for x in &samples {
            let error = error(&w, x) / SAMPLES as f64;
            g.iter_mut().zip(x).for_each(|(g, x)| *g += error * x);
        }
        g[FEATURES] = if step % 2 == 0 { 4.0 } else { -4.0 };
        let pushed = push(client, &table, &g.map(|g| g as f32)).unwrap();
        client.wait_applied(&pushed).unwrap();
        let pull = PullOptions::default();
        client.pull_range(&table, 0, &mut w, pull).unwrap();
    }
    let squares = samples.iter().map(|x| error(&w, x).powi(2));
    squares.sum::<f64>() / SAMPLES as f64
}
