// What happens when a mapped file becomes shorter while the program reads it.
#pragma once

namespace cyfa::app {

// Handles SIGBUS for the whole process: reading beyond the new end of a mapped file ends the program with an error that names the file, and
// exit status 2. Any other SIGBUS ends it as before. Files that the program writes are not touched: a checkpoint is complete or absent.
void report_lost_pages();

}  // namespace cyfa::app
