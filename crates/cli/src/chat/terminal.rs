//! The conversation at the terminal.

use super::answer::Conversation;
use crate::{Failure, Result};
use rustyline::error::ReadlineError;
use rustyline::{DefaultEditor, config::Configurer};

/// Questions that the arrow keys bring back.
const HISTORY: usize = 1000;

/// Asks and answers until the input ends.
///
/// # Errors
/// The terminal can't be read.
pub(super) fn converse(conversation: &mut Conversation<'_>, timings: bool) -> Result<()> {
    let mut editor = DefaultEditor::new().map_err(Failure::of)?;
    editor.set_auto_add_history(true);
    editor.set_max_history_size(HISTORY).map_err(Failure::of)?;
    eprintln!("Ctrl-C stops an answer; /clear begins anew; /quit or Ctrl-D ends.");
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            // Gives up the line, as in a shell.
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(Failure(format!("the terminal can't be read: {error}"))),
        };
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(()),
            "/clear" => conversation.clear(),
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                eprintln!("{command}: there are /clear and /quit");
            }
            question => {
                if let Err(failure) = conversation.say(question, timings) {
                    eprintln!("error: {failure}");
                }
            }
        }
    }
}
