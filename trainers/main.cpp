// penstock: parses the command line, runs one command, and turns errors into exit codes. Nothing
// below main() exits.
#include <iostream>
#include <new>

#include "framework/core/log.h"
#include "framework/io/json.h"
#include "framework/io/signals.h"
#include "trainers/cli.h"
#include "trainers/commands.h"

namespace {

using namespace penstock;

bool asks_for_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json") {
      return true;
    }
  }
  return false;
}

int failed(const std::string& message, ExitCode code, bool json) {
  log::error("{}", message);
  if (json) {
    std::cout << io::Json(io::Json::object())
                     .set("error", message)
                     .set("exit_code", int(code))
                     .dump()
              << "\n";
  }
  return int(code);
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = asks_for_json(argc, argv);
  try {
    signals::install();
    const auto arguments = trainers::parse_arguments(argc, argv);
    if (!arguments) {
      return 0;
    }
    return int(trainers::run_command(*arguments));
  } catch (const Error& e) {
    return failed(e.what(), e.code(), json);
  } catch (const std::bad_alloc&) {
    return failed("out of host memory; lower loader.max_bytes or the batch", ExitCode::kMemory, json);
  } catch (const std::exception& e) {
    return failed(std::string("internal error: ") + e.what(), ExitCode::kInternal, json);
  }
}
