/// A headless Chromium with one page, driven by the DevTools protocol over a pair of pipes: no port, no driver program.
///
/// One thread. Failures of the browser itself throw `browser_failed`, which ends the test.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gpumem::page_test {

class browser_failed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The first of chromium, chromium-browser, google-chrome on PATH; GPUMEM_TEST_BROWSER where that is set.
std::optional<std::string> browser_program();

class browser {
 public:
  explicit browser(const std::string& program);
  ~browser();
  browser(const browser&) = delete;
  browser& operator=(const browser&) = delete;

  /// Sets the window's size; a phone has touch and two device pixels a pixel.
  void resize(int width, int height, bool phone = false);
  void prefer_dark(bool dark);
  /// Opens the file and waits until `document.documentElement.dataset.ready` is set, 30 s at most.
  void open(const std::filesystem::path& file);
  /// The value of a JavaScript expression.
  nlohmann::json evaluate(const std::string& expression);
  void press(const std::string& key);
  /// Moves the pointer, in pixels of the window.
  void move_pointer(double x, double y);
  /// Taps the touch screen.
  void tap(double x, double y);
  /// A screenshot of the whole page as PNG.
  void save_picture(const std::filesystem::path& file);

  /// Errors and warnings on the console and exceptions, since the page was opened.
  [[nodiscard]] const std::vector<std::string>& complaints() const noexcept { return complaints_; }
  /// Every address requested since then.
  [[nodiscard]] const std::vector<std::string>& requests() const noexcept { return requests_; }

 private:
  nlohmann::json call(const std::string& method, const nlohmann::json& parameters = nlohmann::json::object());
  nlohmann::json next_message();
  void note(const nlohmann::json& event);

  std::filesystem::path profile_;
  pid_t process_ = -1;
  int to_ = -1;
  int from_ = -1;
  int calls_ = 0;
  std::string session_;
  std::string received_;
  std::vector<std::string> complaints_;
  std::vector<std::string> requests_;
};

}  // namespace gpumem::page_test
