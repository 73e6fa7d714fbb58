//! A line chart with logarithmic axes, as inline SVG.

use std::fmt::Write;

use super::html::{Unit, escape};

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 118.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;
/// Minimum distance between two names at the right, pixels.
const NAME_GAP: f64 = 15.0;
/// Maximum number of named ticks on the lower axis.
const TICKS_MAX: usize = 9;

/// A line of a chart.
#[derive(Debug, Clone)]
pub(super) struct Series {
    /// Name at the right end of the line.
    pub(super) name: String,
    /// Index into the page's colors; `None` for the reference that is compared with.
    pub(super) color: Option<usize>,
    /// Whether the line is dashed: another run of the same measurement, or a roofline.
    pub(super) dashed: bool,
    pub(super) points: Vec<Point>,
    /// Upper edge of a band above the line: a `y` for each point; empty for no band.
    pub(super) upper: Vec<f64>,
}

/// A point of a line.
#[derive(Debug, Clone)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) tooltip: String,
}

/// A chart with its lines.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: String,
    /// Name of the lower axis.
    pub(super) x: String,
    pub(super) x_unit: Unit,
    pub(super) y_unit: Unit,
    pub(super) series: Vec<Series>,
}

/// A logarithmic axis of a chart.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
    /// Pixel at which `from` is drawn.
    from_at: f64,
    /// Pixel at which `to` is drawn.
    to_at: f64,
}

impl Axis {
    fn place(self, value: f64) -> f64 {
        let part = (value / self.from).ln() / (self.to / self.from).ln();
        self.from_at + part * (self.to_at - self.from_at)
    }
}

impl Chart {
    /// Draws the chart as an SVG element; an empty text if no `x` or no `y` is above 0.
    pub(super) fn svg(&self) -> String {
        let points = self.series.iter().flat_map(|s| &s.points);
        let xs: Vec<f64> = points.clone().map(|p| p.x).collect();
        let bands = self.series.iter().flat_map(|s| &s.upper).copied();
        let ys: Vec<f64> = points.map(|p| p.y).chain(bands).collect();
        let (Some(x), Some(y)) = (x_axis(&xs), y_axis(&ys)) else {
            return String::new();
        };
        let mut svg = format!(
            "<svg class=chart viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img aria-label=\"{0}\">\
             <text class=title x={LEFT} y=18>{0}</text>",
            escape(&self.title)
        );
        self.grid(&mut svg, x, &xs, y);
        for series in &self.series {
            band(&mut svg, series, x, y);
        }
        for series in &self.series {
            line(&mut svg, series, x, y);
        }
        self.names(&mut svg, y);
        svg + "</svg>"
    }

    fn grid(&self, svg: &mut String, x: Axis, xs: &[f64], y: Axis) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, named) in y_ticks(y) {
            let at = y.place(value);
            let class = if named { "grid" } else { "grid minor" };
            let _ = write!(
                svg,
                "<line class=\"{class}\" x1={LEFT} x2={right} y1={at:.1} y2={at:.1} />"
            );
            if named {
                let text = self.y_unit.text(value);
                let (to, at) = (LEFT - 8.0, at + 4.0);
                let _ = write!(
                    svg,
                    "<text class=tick x={to} y={at:.1} text-anchor=end>{text}</text>"
                );
            }
        }
        for value in x_ticks(xs) {
            let at = x.place(value);
            let text = self.x_unit.text(value);
            let (from, below) = (bottom + 4.0, bottom + 18.0);
            let _ = write!(
                svg,
                "<line class=axis x1={at:.1} x2={at:.1} y1={bottom} y2={from} />\
                 <text class=tick x={at:.1} y={below} text-anchor=middle>{text}</text>"
            );
        }
        let (middle, below) = (f64::midpoint(LEFT, right), HEIGHT - 6.0);
        let _ = write!(
            svg,
            "<line class=axis x1={LEFT} x2={right} y1={bottom} y2={bottom} />\
             <text class=label x={middle} y={below} text-anchor=middle>{}</text>",
            escape(&self.x)
        );
    }

    /// Draws names at the right ends of the lines, moved apart if they overlap.
    fn names(&self, svg: &mut String, y: Axis) {
        let ends = self.series.iter().filter_map(|s| {
            let end = s.points.last()?;
            Some((y.place(end.y), s))
        });
        let mut ends: Vec<(f64, &Series)> = ends.collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut free = TOP - NAME_GAP;
        for (at, _) in &mut ends {
            *at = at.max(free + NAME_GAP);
            free = *at;
        }
        // Names that were moved past the bottom move up again.
        let mut free = HEIGHT - BOTTOM + NAME_GAP;
        for (at, _) in ends.iter_mut().rev() {
            *at = at.min(free - NAME_GAP);
            free = *at;
        }
        for (at, series) in ends {
            let (x, y) = (WIDTH - RIGHT + 8.0, at + 4.0);
            let class = class(series);
            let name = escape(&series.name);
            let _ = write!(
                svg,
                "<text class=\"name {class}\" x={x} y={y:.1}>{name}</text>"
            );
        }
    }
}

fn class(series: &Series) -> String {
    series
        .color
        .map_or_else(|| "baseline".into(), |n| format!("s{n}"))
}

/// The points of a line, as the data of a path.
fn path(series: &Series, x: Axis, y: Axis) -> String {
    let mut path = String::new();
    for (n, point) in series.points.iter().enumerate() {
        let start = if n == 0 { 'M' } else { 'L' };
        let (x, y) = (x.place(point.x), y.place(point.y));
        let _ = write!(path, "{start}{x:.1} {y:.1}");
    }
    path
}

fn band(svg: &mut String, series: &Series, x: Axis, y: Axis) {
    if series.upper.len() != series.points.len() || series.points.len() < 2 {
        return;
    }
    let mut path = path(series, x, y);
    for (point, upper) in series.points.iter().zip(&series.upper).rev() {
        let _ = write!(path, "L{:.1} {:.1}", x.place(point.x), y.place(*upper));
    }
    let _ = write!(
        svg,
        "<path class=\"band {}\" d=\"{path}Z\" />",
        class(series)
    );
}

fn line(svg: &mut String, series: &Series, x: Axis, y: Axis) {
    let path = path(series, x, y);
    let class = class(series);
    let dashed = if series.dashed { " dashed" } else { "" };
    let _ = write!(svg, "<path class=\"line {class}{dashed}\" d=\"{path}\" />");
    for point in &series.points {
        let (cx, cy) = (x.place(point.x), y.place(point.y));
        let tooltip = escape(&point.tooltip);
        let _ = write!(
            svg,
            "<circle class=\"dot {class}\" cx={cx:.1} cy={cy:.1} r=3 />\
             <circle class=hit cx={cx:.1} cy={cy:.1} r=9><title>{tooltip}</title></circle>"
        );
    }
}

fn x_axis(xs: &[f64]) -> Option<Axis> {
    let (from, to) = ends(xs)?;
    // A single value is drawn in the middle.
    let (from, to) = if from == to {
        (from / 2.0, to * 2.0)
    } else {
        (from, to)
    };
    Some(Axis {
        from,
        to,
        from_at: LEFT + 6.0,
        to_at: WIDTH - RIGHT - 6.0,
    })
}

fn y_axis(ys: &[f64]) -> Option<Axis> {
    let (from, to) = ends(ys)?;
    Some(Axis {
        from: from / 1.25,
        to: to * 1.25,
        from_at: HEIGHT - BOTTOM,
        to_at: TOP,
    })
}

fn ends(values: &[f64]) -> Option<(f64, f64)> {
    let values = values.iter().copied().filter(|v| v.is_finite() && *v > 0.0);
    let from = values.clone().reduce(f64::min)?;
    Some((from, values.reduce(f64::max)?))
}

/// Values of grid lines, and whether each is named. Lines are at 1, 10, 100, and on all but a long axis at 2
/// and 5 between them; these are named only on a short axis.
fn y_ticks(axis: Axis) -> Vec<(f64, bool)> {
    let decades = (axis.to / axis.from).log10();
    let first = axis.from.log10().floor() as i32;
    let last = axis.to.log10().ceil() as i32;
    let mut ticks = Vec::new();
    for decade in first..=last {
        for step in [1.0, 2.0, 5.0] {
            let value = step * 10_f64.powi(decade);
            let named = step == 1.0 || decades < 2.2;
            if (axis.from..=axis.to).contains(&value) && (named || decades < 5.0) {
                ticks.push((value, named));
            }
        }
    }
    ticks
}

/// Values named on the lower axis, ascending: every one, or every second, third, ... of the distinct `xs`.
fn x_ticks(xs: &[f64]) -> Vec<f64> {
    let mut all: Vec<f64> = xs.to_vec();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let every = all.len().div_ceil(TICKS_MAX).max(1);
    all.into_iter().step_by(every).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)]) -> Chart {
        let points = points.iter().map(|&(x, y)| Point {
            x,
            y,
            tooltip: "a <b>".into(),
        });
        Chart {
            title: "t & u".into(),
            x: "bytes".into(),
            x_unit: Unit::Bytes,
            y_unit: Unit::Micros,
            series: vec![Series {
                name: "pull".into(),
                color: Some(0),
                dashed: false,
                points: points.collect(),
                upper: Vec::new(),
            }],
        }
    }

    #[test]
    fn points_are_where_they_belong() {
        let svg = chart(&[(8.0, 1.0), (64.0, 10.0), (512.0, 100.0)]).svg();
        // The middle of both logarithmic axes.
        let (x, y) = (
            f64::midpoint(LEFT, WIDTH - RIGHT),
            f64::midpoint(TOP, HEIGHT - BOTTOM),
        );
        assert!(svg.contains(&format!("cx={x:.1} cy={y:.1}")), "{svg}");
        assert!(svg.contains("t &amp; u") && svg.contains("a &lt;b&gt;"));
        assert!(svg.contains(">10 us<") && svg.contains(">512<"));
    }

    #[test]
    fn odd_input_draws_nothing_or_something() {
        assert_eq!(chart(&[]).svg(), "");
        assert_eq!(chart(&[(8.0, 0.0)]).svg(), "");
        assert_eq!(chart(&[(8.0, f64::NAN)]).svg(), "");
        assert!(!chart(&[(8.0, 1.0)]).svg().contains("NaN"));
    }

    #[test]
    fn names_keep_apart() {
        let mut chart = chart(&[(8.0, 1.0), (16.0, 2.0)]);
        let one = chart.series[0].clone();
        chart.series = vec![one; 4];
        let svg = chart.svg();
        let names = svg.match_indices("class=\"name").map(|(at, _)| {
            let rest = &svg[at..];
            let y = rest.split(" y=").nth(1).unwrap();
            y.split('>').next().unwrap().parse::<f64>().unwrap()
        });
        let mut all: Vec<f64> = names.collect();
        all.sort_by(f64::total_cmp);
        assert!(
            all.windows(2).all(|w| w[1] - w[0] >= NAME_GAP - 0.2),
            "{all:?}"
        );
    }
}
