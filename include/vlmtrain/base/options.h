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

/// What a value must fulfil: the phrase stands in the documentation and in the error message.
template <class T>
struct Check {
  std::string description;
  std::function<bool(const T&)> is_satisfied;
};

template <class T>
Check<T> at_least(T min_value);
template <class T>
Check<T> exceeds(T min_value);
/// low <= value <= high
template <class T>
Check<T> between(T min_value, T max_value);
/// low <= value < high
template <class T>
Check<T> between_half_open(T min_value, T max_value);

/// `auto`, or what fulfils `check`.
template <class T>
Check<Auto<T>> allow_auto(const Check<T>& check) {
  return {"auto, or " + check.description,
          [check](const Auto<T>& value) { return !value || check.is_satisfied(*value); }};
}

/// The declarations of all options: one declaration gives key, type, default, check, documentation, YAML reading and
/// override. Each part declares its own struct (`declare(OptionTable&, DataOptions&)`); the defaults are the values
/// that the struct holds when it is declared. The structs must outlive the table. Not thread-safe.
class OptionTable {
 public:
  OptionTable();
  ~OptionTable();
  OptionTable(OptionTable&&) noexcept;
  OptionTable& operator=(OptionTable&&) noexcept;

  /// T: bool, int64_t, double, std::string, std::vector<std::string>, Auto<int64_t>, Auto<double>, or
  /// std::map<std::string, std::string>: a section of texts, of which an override may set one (data.columns.answer=A).
  template <class T>
  void add(std::string key, T& target, std::string doc, std::optional<Check<T>> check = std::nullopt);

  /// One of a few named values.
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

  /// A value with a structure of its own, lists and sections, as JSON. `get` gives it; `set` takes one, or says what is
  /// wrong with it. `type`: its name for people.
  void add_structured(std::string key, std::string type, std::function<nlohmann::ordered_json()> get,
                      std::function<std::optional<std::string>(const nlohmann::ordered_json&)> set, std::string doc);

  /// A sentence about a section, for the documentation. Sections are documented in the order in which they are named.
  void describe_section(std::string section, std::string doc);

  /// What is said of a key that is not declared and that `make_hint` knows; else the nearest declared key.
  void set_unknown_key_hint(std::function<std::optional<std::string>(std::string_view key)> make_hint);

  /// Sets the values that a YAML file names, then the overrides (`training.max_steps=10`; the value is YAML). Throws
  /// one UserError (kUsage) that lists every error, each with its key, line and remedy. An empty path reads no file.
  void read(const std::filesystem::path& yaml_file, const std::vector<std::string>& overrides);

  /// The declared key whose last word is `word`, such as training.learning_rate of learning_rate.
  std::optional<std::string> find_key_by_name(std::string_view word) const;
  /// What to say of a key that is not declared, after "unknown key …; ".
  std::string suggest_known_key(std::string_view key) const;

  /// The value of one declared key as `to_yaml` writes it.
  std::string format_value(std::string_view key) const;
  /// All values as YAML that `read` takes back, in the order of declaration.
  std::string to_yaml() const;
  /// docs/config.md: a table a section.
  std::string to_markdown() const;

 private:
  void add_enum_by_index(std::string key, std::vector<std::string> names, const std::function<size_t()>& get,
                         const std::function<void(size_t)>& set, std::string doc);

  struct Declarations;
  std::unique_ptr<Declarations> declarations_;
};

/// The entry of `candidates` with the least edit distance to `word`, if it is near enough to be meant.
std::optional<std::string> find_nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace vlmtrain
