// A scheduler of jobs: functions with parameters as Rust programs have them, called always the same.
use std::collections::BTreeMap;
use std::io::Read;

#[derive(Clone, Copy, PartialEq)]
#[repr(u8)]
enum Level { Low = 1, High = 200 }

#[derive(Clone, Copy)]
struct Pair { a: u32, b: i32 }

struct Job { id: u64, name: String, level: Level, cost: i64, after: Option<u64> }

struct Queue { jobs: Vec<Job>, done: BTreeMap<u64, i64>, limit: usize }

trait Rule { fn allows(&self, job: &Job, day: u8) -> bool; }
struct Weekday(u8);
impl Rule for Weekday {
    #[inline(never)]
    fn allows(&self, job: &Job, day: u8) -> bool { day % 7 != self.0 || job.level == Level::High }
}

impl Job {
    #[inline(never)]
    fn new(id: u64, name: &str, level: Level, cost: i64) -> Job { Job { id, name: name.to_string(), level, cost, after: None } }
    #[inline(never)]
    fn price(&self, rate: i32, rush: bool) -> i64 { self.cost * rate as i64 + rush as i64 }
    #[inline(never)]
    fn wait_for(&mut self, id: u64) { self.after = Some(id) }
    #[inline(never)]
    fn matches(&self, text: &str) -> bool { self.name.contains(text) }
}

impl Queue {
    #[inline(never)]
    fn push(&mut self, job: Job, front: bool) -> usize {
        if front { self.jobs.insert(0, job) } else { self.jobs.push(job) }
        self.jobs.len()
    }
    #[inline(never)]
    fn find(&self, id: u64) -> Option<&Job> { self.jobs.iter().find(|j| j.id == id) }
    #[inline(never)]
    fn run(&mut self, rule: &dyn Rule, day: u8, budget: i64) -> i64 {
        let mut left = budget;
        for j in &self.jobs {
            if rule.allows(j, day) && left > 0 { left -= j.price(2, day == 3); self.done.insert(j.id, left); }
        }
        left
    }
    #[inline(never)]
    fn room(&self, wanted: usize) -> bool { self.jobs.len() + wanted <= self.limit }
}

#[inline(never)]
fn swap(p: Pair, by: i32) -> Pair { Pair { a: (p.b + by) as u32, b: p.a as i32 } }
#[inline(never)]
fn sum(values: &[i32], start: i64) -> i64 { values.iter().fold(start, |a, &b| a + b as i64) }
#[inline(never)]
fn scale(values: &mut [i32], by: i32) { for v in values.iter_mut() { *v = v.wrapping_mul(by) } }
#[inline(never)]
fn hash(text: &str, seed: u64) -> u64 { text.bytes().fold(seed, |h, b| (h ^ b as u64).wrapping_mul(0x100000001b3)) }
#[inline(never)]
fn many(a: i8, b: u16, c: i32, d: u64, e: bool, f: char, g: i64, h: u8) -> i64 {
    a as i64 + b as i64 + c as i64 + d as i64 + e as i64 + f as i64 + g + h as i64
}
#[inline(never)]
fn mean(total: f64, count: u32) -> f64 { total / count as f64 }
#[inline(never)]
fn depth(n: u32, at: &Pair) -> u32 { if n == 0 { at.a } else { depth(n - 1, at).wrapping_add(at.b as u32) } }
#[inline(never)]
fn parse(text: &str, base: u32) -> Option<u32> { u32::from_str_radix(text, base).ok() }
#[inline(never)]
fn clamp(v: i64, lo: i64, hi: i64) -> i64 { v.max(lo).min(hi) }
#[inline(never)]
fn wrap(n: i64, by: u16) -> i64 { n.rotate_left(by as u32 % 64) }
#[inline(never)]
fn pick(a: u8, b: i8, first: bool) -> i32 { if first { a as i32 } else { b as i32 } }
#[inline(never)]
fn area(p: &Pair, unit: i16) -> i64 { p.a as i64 * p.b as i64 * unit as i64 }
#[inline(never)]
fn report(out: &mut String, line: &str, width: usize) { out.push_str(line); while out.len() % width != 0 { out.push(' ') } }

fn main() {
    println!("ready");
    let mut b = [0u8; 1];
    std::io::stdin().read_exact(&mut b).unwrap();
    let mut q = Queue { jobs: Vec::new(), done: BTreeMap::new(), limit: 30 };
    let (mut n, mut out) = (0i64, String::new());
    let mut values: Vec<i32> = Vec::new();
    for i in 0..40u64 {
        let name = format!("job number {}", i);
        let mut j = Job::new(i * 3, &name, if i % 4 == 0 { Level::High } else { Level::Low }, i as i64 * -7);
        if i % 5 == 0 { j.wait_for(i) }
        n += j.matches("1") as i64 + j.price(i as i32 - 20, i % 2 == 0);
        if q.room(1) { n += q.push(j, i % 3 == 0) as i64 }
        n += q.find(i).map_or(-1, |j| j.cost) + q.run(&Weekday((i % 7) as u8), i as u8, 1000 - i as i64);
        let p = swap(Pair { a: i as u32, b: -5 }, i as i32);
        values.push(p.b);
        scale(&mut values, i as i32 % 5 - 2);
        n = n.wrapping_add(sum(&values, n)).wrapping_add(hash(&name, i) as i64 >> 8);
        n += many(-(i as i8), i as u16 * 1000, -3, 1 << i, i % 2 == 1, 'é', i64::MIN >> 1, i as u8) >> 4;
        n += mean(n as f64, i as u32 + 1) as i64 / 1000 + depth(i as u32 % 6, &p) as i64;
        n += parse(&i.to_string(), 7).unwrap_or(99) as i64 + clamp(n, -1000, i as i64);
        n += wrap(n, i as u16 * 500) >> 8;
        n += pick(i as u8, -(i as i8), n % 2 == 0) as i64 + area(&p, i as i16 - 20);
        report(&mut out, &name, 16);
    }
    println!("{} {}\ndone", n, out.len());
    let _ = std::io::stdin().read_exact(&mut b);
}
