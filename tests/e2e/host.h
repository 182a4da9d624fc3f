#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "e2e/command.h"

namespace vlmtrain::e2e {

/// A machine with the stub libraries of a driver (tests/driver_stubs), and the environment of a
/// host.
class HostTest : public CommandTest {
 protected:
  void TearDown() override {
    for (const auto& [name, old_value] : old_state_) {
      if (old_value) {
        setenv(name.c_str(), old_value->c_str(), 1);
      } else {
        unsetenv(name.c_str());
      }
    }
    CommandTest::TearDown();
  }

  /// Starts the program if a variable is set, because libraries read some of them when they are
  /// loaded.
  Result run(const std::vector<std::string>& arguments) const {
    return Process(folder(), arguments, 0, old_state_.empty() ? "" : VLMTRAIN_BINARY).wait();
  }

  /// Sets a variable until the test's end.
  void set(const std::string& name, const std::string& value) {
    const char* const old_value = getenv(name.c_str());
    old_state_.emplace(name, old_value == nullptr ? std::nullopt : std::optional<std::string>(old_value));
    setenv(name.c_str(), value.c_str(), 1);
  }
  void install_driver(const std::string& kind) {
    set("LD_LIBRARY_PATH", VLMTRAIN_STUB_DRIVER_FOLDER);
    set("VLMTRAIN_STUB_DRIVER", kind);
  }

 private:
  std::map<std::string, std::optional<std::string>> old_state_;
};

}  // namespace vlmtrain::e2e
