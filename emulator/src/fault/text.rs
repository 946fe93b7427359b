//! Rules as text: `at=io queue=1 opcode=0x02 skip=3 count=1 action=delay:5ms`.
//!
//! What is written is what is read, so that a plan in a log can be pasted into a file and run again.

use std::fmt;
use std::str::FromStr;

use doorbell_spec::{Nsid, QueueId, Status};

use super::{Action, Match, Point, Rule};
use crate::config::{duration_text, parse_duration, parse_number};

/// Why a rule could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not part of a fault rule: {expected}")]
pub struct RuleError {
    /// The word that is wrong.
    pub word: String,
    /// What may stand there.
    pub expected: &'static str,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let matches = &self.matches;
        write!(f, "at={}", point_text(matches.point))?;
        if let Some(queue) = matches.queue {
            write!(f, " queue={queue}")?;
        }
        if let Some(opcode) = matches.opcode {
            write!(f, " opcode={opcode:#04x}")?;
        }
        if let Some(nsid) = matches.nsid {
            write!(f, " nsid={nsid}")?;
        }
        if let Some(lbas) = &matches.lbas {
            write!(f, " lba={}-{}", lbas.start(), lbas.end())?;
        }
        if let Some(register) = matches.register {
            write!(f, " register={register:#x}")?;
        }
        if matches.skip > 0 {
            write!(f, " skip={}", matches.skip)?;
        }
        if let Some(count) = matches.count {
            write!(f, " count={count}")?;
        }
        if matches.probability < 1.0 {
            write!(f, " probability={} seed={}", matches.probability, matches.seed)?;
        }
        write!(f, " action={}", self.action)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => {
                let dnr = if status.do_not_retry() { "/dnr" } else { "" };
                write!(f, "status:{:x}/{:02x}{dnr}", status.kind().raw() >> 8, status.code())
            }
            Self::Delay(time) => write!(f, "delay:{}", duration_text(*time)),
            Self::Pause(time) => write!(f, "pause:{}", duration_text(*time)),
            Self::Reorder => f.write_str("reorder"),
            Self::Drop => f.write_str("drop"),
            Self::Duplicate => f.write_str("duplicate"),
            Self::WrongCid(cid) => write!(f, "cid:{cid:#x}"),
            Self::WrongSqHead(head) => write!(f, "sq_head:{head:#x}"),
            Self::WrongSqId(queue) => write!(f, "sq_id:{queue:#x}"),
            Self::WrongPhase => f.write_str("phase"),
            Self::Corrupt => f.write_str("corrupt"),
            Self::Fatal => f.write_str("fatal"),
            Self::AllOnes => f.write_str("all_ones"),
            Self::NeverReady => f.write_str("never_ready"),
        }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    /// Reads the words of a rule, which are separated by spaces. `action` must be among them.
    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut matches = Match::default();
        let mut action = None;
        for word in text.split_whitespace() {
            let wrong = |expected| RuleError { word: word.to_owned(), expected };
            let (key, value) = word.split_once('=').ok_or_else(|| wrong(KEYS))?;
            match key {
                "action" => action = Some(parse_action(value).ok_or_else(|| wrong(ACTIONS))?),
                "at" => matches.point = parse_point(value).ok_or_else(|| wrong(POINTS))?,
                _ => apply(&mut matches, key, value).map_err(wrong)?,
            }
        }
        let action = action.ok_or_else(|| RuleError { word: text.to_owned(), expected: ACTIONS })?;
        Ok(Self { matches, action })
    }
}

fn apply(matches: &mut Match, key: &str, value: &str) -> Result<(), &'static str> {
    let number = "a number is expected, decimal or with 0x";
    match key {
        "queue" => matches.queue = Some(QueueId(parse_number(value, 65_535).ok_or(number)?)),
        "opcode" => matches.opcode = Some(parse_number(value, 255).ok_or(number)?),
        "nsid" => matches.nsid = Some(Nsid(parse_number(value, u64::from(u32::MAX)).ok_or(number)?)),
        "lba" => {
            let (first, last) = value.split_once('-').unwrap_or((value, value));
            let first: u64 = parse_number(first, u64::MAX).ok_or(number)?;
            let last: u64 = parse_number(last, u64::MAX).ok_or(number)?;
            matches.lbas = Some(first..=last);
        }
        "register" => matches.register = Some(parse_number(value, 0xfff).ok_or(number)?),
        "skip" => matches.skip = parse_number(value, u64::MAX).ok_or(number)?,
        "count" => matches.count = Some(parse_number(value, u64::MAX).ok_or(number)?),
        "seed" => matches.seed = parse_number(value, u64::MAX).ok_or(number)?,
        "probability" => {
            let chance = value.parse().ok().filter(|chance| (0.0..=1.0).contains(chance));
            matches.probability = chance.ok_or("a probability is 0 to 1, as in probability=0.001")?;
        }
        _ => return Err(KEYS),
    }
    Ok(())
}

fn point_text(point: Point) -> &'static str {
    match point {
        Point::Command => "command",
        Point::Admin => "admin",
        Point::Io => "io",
        Point::RegisterRead => "register_read",
        Point::RegisterWrite => "register_write",
        Point::Enable => "enable",
    }
}

fn parse_point(text: &str) -> Option<Point> {
    use Point::{Admin, Command, Enable, Io, RegisterRead, RegisterWrite};
    [Command, Admin, Io, RegisterRead, RegisterWrite, Enable]
        .into_iter()
        .find(|point| point_text(*point) == text)
}

fn parse_action(text: &str) -> Option<Action> {
    let (name, value) = text.split_once(':').unwrap_or((text, ""));
    Some(match (name, value) {
        ("status", value) => Action::Status(parse_status(value)?),
        ("delay", value) => Action::Delay(parse_duration(value)?),
        ("cid", value) => Action::WrongCid(parse_number(value, 65_535)?),
        ("sq_head", value) => Action::WrongSqHead(parse_number(value, 65_535)?),
        ("sq_id", value) => Action::WrongSqId(parse_number(value, 65_535)?),
        ("pause", value) => Action::Pause(parse_duration(value)?),
        ("reorder", "") => Action::Reorder,
        ("drop", "") => Action::Drop,
        ("duplicate", "") => Action::Duplicate,
        ("phase", "") => Action::WrongPhase,
        ("corrupt", "") => Action::Corrupt,
        ("fatal", "") => Action::Fatal,
        ("all_ones", "") => Action::AllOnes,
        ("never_ready", "") => Action::NeverReady,
        _ => return None,
    })
}

/// Reads `2/81` or `2/81/dnr`: status code type and status code, in hexadecimal.
fn parse_status(text: &str) -> Option<Status> {
    let (text, has_dnr) = match text.strip_suffix("/dnr") {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (status_type, code) = text.split_once('/')?;
    let status_type = u8::from_str_radix(status_type, 16).ok().filter(|sct| *sct <= 7)?;
    let status = Status::of(status_type, u8::from_str_radix(code, 16).ok()?);
    Some(if has_dnr { status.with_do_not_retry() } else { status })
}

const KEYS: &str = "the keys are at, queue, opcode, nsid, lba, register, skip, count, probability, seed and \
                    action, as in opcode=0x02 count=1 action=drop";
const POINTS: &str = "at is command, admin, io, register_read, register_write or enable";
const ACTIONS: &str = "action is status:TYPE/CODE[/dnr], delay:TIME, pause:TIME, reorder, drop, \
                       duplicate, cid:N, sq_head:N, sq_id:N, phase, corrupt, fatal, all_ones or \
                       never_ready, as in action=status:2/81";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_rule_survives_the_round_trip() {
        let actions = [
            Action::Status(Status::UNRECOVERED_READ_ERROR),
            Action::Status(Status::INVALID_FIELD.with_do_not_retry()),
            Action::Delay(Duration::from_millis(5)),
            Action::Pause(Duration::from_micros(7)),
            Action::Reorder,
            Action::Drop,
            Action::Duplicate,
            Action::WrongCid(0xffff),
            Action::WrongSqHead(3),
            Action::WrongSqId(9),
            Action::WrongPhase,
            Action::Corrupt,
            Action::Fatal,
            Action::AllOnes,
            Action::NeverReady,
        ];
        for action in actions {
            let matches = Match {
                point: Point::Io,
                queue: Some(QueueId(3)),
                opcode: Some(2),
                nsid: Some(Nsid(7)),
                lbas: Some(8..=15),
                register: Some(0x1c),
                skip: 1,
                count: Some(2),
                probability: 0.125,
                seed: 99,
            };
            for rule in [Rule::new(matches, action), Rule::new(Match::default(), action)] {
                assert_eq!(rule.to_string().parse::<Rule>().as_ref(), Ok(&rule), "{rule}");
            }
        }
    }

    #[test]
    fn a_wrong_word_is_named() {
        for text in ["", "drop", "colour=red action=drop", "queue=x action=drop", "probability=2 action=drop"]
        {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
        let error = "opcode=0x02 action=sing".parse::<Rule>().expect_err("no such action");
        assert!(error.to_string().contains("action=sing") && error.to_string().contains("duplicate"));
    }
}
