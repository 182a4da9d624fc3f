#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "vlmtrain/base/option_keys.h"

namespace vlmtrain {

/// A value that the user sets, or std::nullopt (`auto` in YAML) if the program chooses it.
template <class T>
using AutoOr = std::optional<T>;

/// A condition on the value of an option. `description` completes "must be …" in the documentation
/// and in error messages.
template <class T>
struct ValueCheck {
  std::string description;
  std::function<bool(const T&)> is_satisfied;
};

// The functions below return checks of numbers, for T = int64_t or double (in_half_open_range: only
// double).

/// Returns the check value >= min_value.
template <class T>
ValueCheck<T> at_least(T min_value);
/// Returns the check value > min_value.
template <class T>
ValueCheck<T> exceeds(T min_value);
/// Returns the check min_value <= value <= max_value.
template <class T>
ValueCheck<T> between(T min_value, T max_value);
/// Returns the check min_value <= value < max_value.
template <class T>
ValueCheck<T> in_half_open_range(T min_value, T max_value);

/// Returns a check that `auto` and every value that satisfies `check` satisfy.
template <class T>
ValueCheck<AutoOr<T>> allow_auto(const ValueCheck<T>& check) {
  return {"auto, or " + check.description,
          [check](const AutoOr<T>& value) { return !value || check.is_satisfied(*value); }};
}

/// Whether a run may resume with a changed value of an option (docs/how-to/resume.md).
enum class ResumeRule : uint8_t {
  kFree,         ///< always: results do not depend on the value, or only by rounding
  kIfRequested,  ///< with training.resume=changed
  kNever,        ///< never: checkpoints or the sample order would not match the changed value
};

/// Returns "free", "changed" or "never".
std::string_view to_string(ResumeRule rule);

/// Keys of other trainers that correspond to an option. They are errors that name the option, since
/// their meaning or unit may differ.
struct OptionHint {
  std::vector<std::string> names;  ///< last components of the keys; each belongs to one hint
  std::string text{};              ///< must contain the option's key; empty: the key alone
};

/// A field of an aggregate that an initializer cannot omit.
template <class T>
class Required {
 public:
  Required(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): initializes the field
  operator const T&() const { return value_; }     // NOLINT(google-explicit-constructor)

 private:
  T value_;
};

/// The properties of an option beyond its key, its type and the check of its value.
struct OptionInfo {
  std::string doc;                     ///< Markdown text of one table cell
  Required<ResumeRule> resume;         ///< rule for runs that resume
  std::string unit{};                  ///< of a number, such as "tokens"; empty: none
  std::vector<std::string> aliases{};  ///< earlier names, accepted wherever the key is accepted
  std::vector<OptionHint> hints{};     ///< names in other trainers
  /// Earlier names of values of an enum, accepted in place of the value: name, value.
  std::map<std::string, std::string> value_aliases{};
};

struct OptionDeclarations;

/// A table of all configuration options. One declaration sets everything about an option: key, type,
/// default, check, documentation, unit, aliases, hints and resume rule. Reading, overrides, output,
/// error messages, documentation and the fingerprint of runs follow from it. Each part of the
/// program declares the options of its own struct, such as `declare_options(OptionTable&,
/// DataOptions&)`. The default of an option is the value in the struct at its declaration.
///
/// A key has the form `section.name`, such as training.max_steps. Keys and aliases are unique, and
/// so are the names of hints. A hint with the name (last component) of another option's key must
/// name that key too. Declarations that violate this throw InternalError.
/// Ownership: the table holds references to the structs, which must outlive it.
/// Thread safety: external synchronization is required.
class OptionTable {
 public:
  OptionTable();
  ~OptionTable();
  OptionTable(OptionTable&&) noexcept;
  OptionTable& operator=(OptionTable&&) noexcept;

  /// Declares the option `key`, stored in `target`. T is bool, int64_t, double, std::string,
  /// std::vector<std::string>, AutoOr<int64_t>, AutoOr<double> or std::map<std::string,
  /// std::string>. An override may set a single entry of a map (data.columns.answer=A).
  template <class T>
  void add(std::string_view key, T& target, const OptionInfo& info,
           std::optional<ValueCheck<std::type_identity_t<T>>> check = std::nullopt);

  /// Declares an option with the type E, an enum. `values` lists its values with their names in
  /// YAML and must contain the default.
  template <class E>
  void add_enum(std::string_view key, E& target, std::vector<std::pair<std::string, std::type_identity_t<E>>> values,
                const OptionInfo& info) {
    std::vector<std::string> names;
    names.reserve(values.size());
    for (const auto& value : values) names.push_back(value.first);
    add_enum_by_index(
        key, std::move(names),
        [&target, values] {
          for (size_t i = 0; i < values.size(); ++i) {
            if (values[i].second == target) return i;
          }
          return size_t{0};
        },
        [&target, values](size_t index) { target = values[index].second; }, info);
  }

  /// Declares an option whose value is a JSON structure of lists and sections, nested at most 8
  /// deep. `type` is the name of the structure in the documentation. `get` returns the value. `set`
  /// either stores a value and returns nothing, or returns an error message without the key.
  void add_structured_option(std::string_view key, std::string type, const std::function<nlohmann::ordered_json()>& get,
                             std::function<std::optional<std::string>(const nlohmann::ordered_json&)> set,
                             const OptionInfo& info);

  /// Declares keys of other trainers to which no option corresponds. `advice` is a clause that
  /// follows "unknown key …; ".
  void add_foreign_keys(std::vector<std::string> names, std::string advice);

  /// Sets the introduction of a section in the documentation. Sections are documented in the order
  /// of these calls.
  void set_section_description(std::string section, std::string doc);

  /// Sets the values in a YAML file, then the overrides (`training.max_steps=10`, where the value
  /// is YAML). An empty path reads no file. Throws one UserError (kUsage) that lists all errors,
  /// but at most some 100 of the file, each with its key, its line and a suggestion. Valid values
  /// are stored even if it throws. A file that sets a key and its alias is invalid, and so is a
  /// command line.
  void read(const std::filesystem::path& yaml_file, const std::vector<std::string>& overrides);

  /// Returns the declared key that `name` means: the key itself, an alias, or the last component of
  /// either, such as learning_rate for training.learning_rate. Nothing if there is no such key, or
  /// if `name` is a hint of another option.
  std::optional<std::string> find_key(std::string_view name) const;
  /// Returns the suggestion for an undeclared key, a clause that follows "unknown key …; ": the hint
  /// of its last component, or the nearest declared key.
  std::string make_key_suggestion(std::string_view key) const;

  /// Returns the rule of a declared key; nothing for other texts.
  std::optional<ResumeRule> find_resume_rule(std::string_view key) const;
  /// Returns the keys with this rule in the order of declaration.
  std::vector<std::string> list_keys(ResumeRule rule) const;

  /// Returns the value of a declared key in the format of to_yaml().
  std::string format_value(std::string_view key) const;
  /// Returns all values as YAML in the order of declaration. read() accepts the result.
  std::string to_yaml() const;
  /// Returns the text of docs/reference/config.md: one table per described section, and one of the hints.
  std::string to_markdown() const;

 private:
  void add_enum_by_index(std::string_view key, std::vector<std::string> names, const std::function<size_t()>& get,
                         const std::function<void(size_t)>& set, const OptionInfo& info);

  std::unique_ptr<OptionDeclarations> declarations_;
};

/// Returns the entry of `candidates` with the smallest Levenshtein distance to `word`, or nothing
/// if the distance is too large for a typing error: at least 3, and at least a third of the word's
/// length; or at least the word's length.
std::optional<std::string> find_nearest_word(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace vlmtrain
