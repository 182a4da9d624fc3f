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

/// A table of all configuration options. One declaration sets key, type, default, check and
/// documentation of an option; reading, overrides and output follow from it. Each part of the
/// program declares the options of its own struct, such as `declare_options(OptionTable&,
/// DataOptions&)`. The default of an option is the value in the struct at its declaration.
///
/// A key has the form `section.name`, such as training.max_steps, and is declared once. Otherwise
/// InternalError is thrown.
/// Ownership: the table holds references to the structs, which must outlive it.
/// Thread safety: external synchronization is required.
class OptionTable {
 public:
  OptionTable();
  ~OptionTable();
  OptionTable(OptionTable&&) noexcept;
  OptionTable& operator=(OptionTable&&) noexcept;

  /// Declares the option `key`, stored in `target`. `doc` is Markdown text of one table cell. T is
  /// bool, int64_t, double, std::string, std::vector<std::string>, AutoOr<int64_t>, AutoOr<double>
  /// or std::map<std::string, std::string>. An override may set a single entry of a map
  /// (data.columns.answer=A).
  template <class T>
  void add(std::string key, T& target, std::string doc, std::optional<ValueCheck<T>> check = std::nullopt);

  /// Declares an option with the type E, an enum. `values` lists its values with their names in
  /// YAML and must contain the default.
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

  /// Declares an option whose value is a JSON structure of lists and sections, nested at most 8
  /// deep. `type` is the name of the structure in the documentation. `get` returns the value. `set`
  /// either stores a value and returns nothing, or returns an error message without the key.
  void add_structured_option(std::string key, std::string type, const std::function<nlohmann::ordered_json()>& get,
                             std::function<std::optional<std::string>(const nlohmann::ordered_json&)> set,
                             std::string doc);

  /// Accepts `alias`, an earlier name of the declared `key`, wherever the key is accepted. Output
  /// contains only the key. A file that sets both is invalid, and so is a command line.
  void add_alias(std::string alias, std::string key);

  /// Sets the introduction of a section in the documentation. Sections are documented in the order
  /// of these calls.
  void set_section_description(std::string section, std::string doc);

  /// Sets a function that returns a description of the option that corresponds to an undeclared
  /// key, such as a key of another trainer. If it returns nothing, messages suggest the nearest
  /// declared key.
  void set_unknown_key_hint(std::function<std::optional<std::string>(std::string_view key)> make_hint);

  /// Sets the values in a YAML file, then the overrides (`training.max_steps=10`, where the value
  /// is YAML). An empty path reads no file. Throws one UserError (kUsage) that lists all errors,
  /// but at most some 100 of the file, each with its key, its line and a suggestion. Valid values
  /// are stored even if it throws.
  void read(const std::filesystem::path& yaml_file, const std::vector<std::string>& overrides);

  /// Returns the declared key that `name` means: the key itself, an alias, or the last component of
  /// either, such as learning_rate for training.learning_rate. Nothing if there is no such key.
  std::optional<std::string> find_key(std::string_view name) const;
  /// Returns the suggestion for an undeclared key, a clause that follows "unknown key …; ".
  std::string make_key_suggestion(std::string_view key) const;

  /// Returns the value of a declared key in the format of to_yaml().
  std::string format_value(std::string_view key) const;
  /// Returns all values as YAML in the order of declaration. read() accepts the result.
  std::string to_yaml() const;
  /// Returns the text of docs/config.md: one table per described section.
  std::string to_markdown() const;

 private:
  void add_enum_by_index(std::string key, std::vector<std::string> names, const std::function<size_t()>& get,
                         const std::function<void(size_t)>& set, std::string doc);

  struct Declarations;
  std::unique_ptr<Declarations> declarations_;
};

/// Returns the entry of `candidates` with the smallest Levenshtein distance to `word`, or nothing
/// if the distance is too large for a typing error: at least 3, and at least a third of the word's
/// length.
std::optional<std::string> find_nearest_word(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace vlmtrain
