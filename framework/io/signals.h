// Signals as requests: the handlers set flags and wake whoever waits; the training loop looks at
// the flags at its step borders. The second request to stop leaves at once, which is safe because
// everything durable takes its name only when it is complete.
#pragma once

#include "framework/core/check.h"

namespace penstock::signals {

enum class Stop { kNone, kInterrupt, kTerminate };

// Installs the handlers; call it once, early in main():
// SIGINT, SIGTERM, SIGHUP  stop: save and end; the second one ends the process with 128 + number
//                          (SIGHUP stays ignored where it was ignored at the start: nohup)
// SIGUSR1                  save now and go on
// SIGUSR2, SIGCONT         try again to save, when that is paused
// SIGPIPE, SIGXFSZ         ignored: they come back as errors of write()
void install();

// The first stop request, if any.
Stop stop_requested();
// Requests a stop as a signal would; the watchdog and a time limit use it.
void request_stop(Stop stop);
// True once for each SIGUSR1 (several before the look count as one).
bool take_save_request();
// True once for each SIGUSR2 or SIGCONT.
bool take_retry_request();

// 130 and 143; kDone without a stop.
ExitCode exit_code(Stop stop);

// Sleeps for at most `seconds`, less when a signal arrives or wake() is called meanwhile.
void wait(double seconds);
void wake();

}  // namespace penstock::signals
