#pragma once

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace vlmtrain::app {

enum class Severity {
  kOk,
  kWarn,  ///< worth knowing; training starts all the same
  kFail,  ///< training would not start
};

/// As it is printed: ok, note, mend.
const char* to_string(Severity severity);

struct Finding {
  Severity severity = Severity::kOk;
  std::string text;  ///< one line
};

/// What was found out about one thing: for people, and all of it for scripts.
struct Section {
  std::string name{};
  std::vector<Finding> findings{};
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();

  /// Line breaks and the spaces behind them become one space.
  void add(Severity severity, const std::string& text);
  void ok(const std::string& text) { add(Severity::kOk, text); }
  void warn(const std::string& text) { add(Severity::kWarn, text); }
  void fail(const std::string& text) { add(Severity::kFail, text); }
  bool has_failure() const;
};

/// How something is examined.
struct Examination {
  std::string name;  ///< of the section
  /// What it is to a person that this fails: fills in "… was ended by signal 11": "asking the driver".
  std::string activity;
  std::string suggestion{};  ///< for a crash or a hang, which say nothing of themselves
  double timeout_seconds = 30;
  Severity on_failure = Severity::kFail;  ///< of an error, a crash, a hang
};

/// Does `examine` in a process of its own (base/apart.h): on an odd machine it may throw, crash or hang, and that is a
/// finding. Never throws.
Section examine_in_subprocess(const Examination& examination, const std::function<void(Section&)>& examine);

}  // namespace vlmtrain::app
