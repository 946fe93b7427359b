//! A line on the terminal while something runs. There is none where standard error is not a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The line.
#[derive(Debug)]
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// An empty line, if there is a terminal to put it on.
    pub(crate) fn on_terminal() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::with_draw_target(Some(1000), ProgressDrawTarget::stderr());
        // A template that does not parse leaves the plain style, which is no reason to fail.
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {percent:>3}%  {msg}") {
            bar.set_style(style);
        }
        Self(Some(bar))
    }

    /// Whether anybody sees it.
    pub(crate) fn is_visible(&self) -> bool {
        self.0.is_some()
    }

    /// Shows how much is done, from 0 to 1, and some words.
    pub(crate) fn show(&self, done: f64, words: String) {
        let Some(bar) = &self.0 else { return };
        // Between 0 and 1000 after the clamp.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let permille = (done.clamp(0.0, 1.0) * 1000.0) as u64;
        bar.set_position(permille);
        bar.set_message(words);
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
