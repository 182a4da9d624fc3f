#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vlmtrain {

/// A value that the program chooses unless the user fixes it; `auto` in YAML.
template <class T>
using Auto = std::optional<T>;

/// A condition on the value of an option. `description` completes "must be …" in the documentation
/// and in error messages.
template <class T>
struct Check {
  std::string description;
  std::function<bool(const T&)> is_satisfied;
};

/// Returns the check value >= min_value.
template <class T>
Check<T> at_least(T min_value);
/// Returns the check value > min_value.
template <class T>
Check<T> exceeds(T min_value);
/// Returns the check min_value <= value <= max_value.
template <class T>
Check<T> between(T min_value, T max_value);
/// Returns the check min_value <= value < max_value.
template <class T>
Check<T> between_half_open(T min_value, T max_value);

/// Returns a check that `auto` and every value that satisfies `check` satisfy.
template <class T>
Check<Auto<T>> allow_auto(const Check<T>& check) {
  return {"auto, or " + check.description,
          [check](const Auto<T>& value) { return !value || check.is_satisfied(*value); }};
}

/// Table of all configuration options. One declaration sets key, type, default, check and
/// documentation of an option; reading, overrides and output follow from it. Each part declares a
/// struct of its own with `declare(OptionTable&, DataOptions&)`. The default of an option is the
/// value in the struct at its declaration.
/// Ownership: the table holds references to the structs, which must outlive it.
/// Thread safety: external synchronization is required.
class OptionTable {
 public:
  OptionTable();
  ~OptionTable();
  OptionTable(OptionTable&&) noexcept;
  OptionTable& operator=(OptionTable&&) noexcept;

  /// Declares the option `key`, stored in `target`. T is bool, int64_t, double, std::string,
  /// std::vector<std::string>, Auto<int64_t>, Auto<double> or std::map<std::string, std::string>.
  /// A map is a section of strings; an override may set a single entry (data.columns.answer=A).
  template <class T>
  void add(std::string key, T& target, std::string doc, std::optional<Check<T>> check = std::nullopt);

  /// Declares an option that takes one of the named `values`.
  template <class E>
  void add_enum(const std::string& key, E& target, std::vector<std::pair<std::string, E>> values,
                const std::string& doc) {
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
        [&target, values](size_t index) { target = values[index].second; }, doc);
  }

  /// Declares an option whose value is a JSON structure of lists and sections. `type` is its name
  /// in messages and the documentation. `get` returns the value. `set` stores a value and returns
  /// nothing, or returns the reason for which the value is invalid.
  void add_structured(std::string key, std::string type, const std::function<nlohmann::ordered_json()>& get,
                      std::function<std::optional<std::string>(const nlohmann::ordered_json&)> set, std::string doc);

  /// Accepts `alias`, an earlier name, in place of the declared `key`. Output has the key only. A file
  /// or command line that sets both is an error.
  void add_alias(std::string alias, std::string key);

  /// Sets the introduction of a section in the documentation. Sections are documented in the order
  /// of these calls.
  void describe_section(std::string section, std::string doc);

  /// Sets a function that returns the hint for an undeclared key. If it returns nothing, the hint is
  /// the nearest declared key.
  void set_unknown_key_hint(std::function<std::optional<std::string>(std::string_view key)> make_hint);

  /// Sets the values in a YAML file, then the overrides (`training.max_steps=10`, where the value is
  /// YAML). An empty path reads no file. Throws one UserError (kUsage) that lists every error with
  /// its key, its line and a suggestion.
  void read(const std::filesystem::path& yaml_file, const std::vector<std::string>& overrides);

  /// Returns the declared key whose last part is `word`: training.learning_rate for learning_rate.
  std::optional<std::string> find_key_by_name(std::string_view word) const;
  /// Returns the suggestion for an undeclared key. It completes "unknown key …; ".
  std::string suggest_known_key(std::string_view key) const;

  /// Returns the value of a declared key in the format of to_yaml().
  std::string format_value(std::string_view key) const;
  /// Returns all values as YAML in the order of declaration. read() accepts the result.
  std::string to_yaml() const;
  /// Returns docs/config.md: one table per section.
  std::string to_markdown() const;

 private:
  void add_enum_by_index(std::string key, std::vector<std::string> names, const std::function<size_t()>& get,
                         const std::function<void(size_t)>& set, std::string doc);

  struct Declarations;
  std::unique_ptr<Declarations> declarations_;
};

/// Returns the entry of `candidates` with the smallest edit distance to `word`, or nothing if the
/// distance is too large for a typing error.
std::optional<std::string> find_nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace vlmtrain
