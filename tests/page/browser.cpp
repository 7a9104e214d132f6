#include "browser.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace gpumem::page_test {
namespace {

using json = nlohmann::json;

constexpr int answer_ms = 60'000;

std::string decode_base64(const std::string& text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0;
  int known = 0;
  for (const char c : text) {
    const std::size_t digit = digits.find(c);
    if (digit == std::string_view::npos) break;
    bits = bits << 6 | static_cast<unsigned>(digit);
    known += 6;
    if (known >= 8) {
      known -= 8;
      out += static_cast<char>(bits >> known & 0xff);
    }
  }
  return out;
}

/// In the child: only async-signal-safe calls between fork and exec.
[[noreturn]] void become(const std::vector<char*>& arguments, int in, int out) {
  (void)::setpgid(0, 0);
  const int nowhere = ::open("/dev/null", O_RDWR);
  for (const int each : {0, 1, 2}) (void)::dup2(nowhere, each);
  // The protocol uses descriptors 3 and 4, which the pipes may occupy already.
  const int high_in = ::fcntl(in, F_DUPFD, 10);
  const int high_out = ::fcntl(out, F_DUPFD, 10);
  (void)::dup2(high_in, 3);
  (void)::dup2(high_out, 4);
  (void)::execv(arguments[0], arguments.data());
  ::_exit(127);
}

}  // namespace

std::optional<std::string> browser_program() {
  if (const char* named = std::getenv("GPUMEM_TEST_BROWSER"); named != nullptr) return named;
  std::istringstream folders{std::getenv("PATH") != nullptr ? std::getenv("PATH") : ""};
  for (std::string folder; std::getline(folders, folder, ':');) {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      const std::string path = folder + "/" + name;
      if (::access(path.c_str(), X_OK) == 0) return path;
    }
  }
  return std::nullopt;
}

browser::browser(const std::string& program) {
  std::string name = (std::filesystem::temp_directory_path() / "gpumem_page_test_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw browser_failed{"no folder for the browser's profile"};
  profile_ = name;
  std::vector<std::string> words{program,
                                 "--headless",
                                 "--remote-debugging-pipe",
                                 "--user-data-dir=" + name,
                                 "--no-first-run",
                                 "--disable-gpu",
                                 "--disable-dev-shm-usage",
                                 "--disable-background-networking",
                                 "--hide-scrollbars"};
  if (::geteuid() == 0) words.emplace_back("--no-sandbox");
  words.emplace_back("about:blank");
  std::vector<char*> arguments;
  for (std::string& each : words) arguments.push_back(each.data());
  arguments.push_back(nullptr);
  std::array<int, 2> down{};
  std::array<int, 2> up{};
  if (::pipe2(down.data(), O_CLOEXEC) != 0 || ::pipe2(up.data(), O_CLOEXEC) != 0) throw browser_failed{"no pipe"};
  process_ = ::fork();
  if (process_ == 0) become(arguments, down[0], up[1]);
  (void)::close(down[0]);
  (void)::close(up[1]);
  to_ = down[1];
  from_ = up[0];
  (void)::signal(SIGPIPE, SIG_IGN);
  const std::string target = call("Target.createTarget", {{"url", "about:blank"}})["targetId"];
  session_ = call("Target.attachToTarget", {{"targetId", target}, {"flatten", true}})["sessionId"];
  for (const char* part : {"Page.enable", "Runtime.enable", "Log.enable", "Network.enable"}) call(part);
}

browser::~browser() {
  for (const int each : {to_, from_}) {
    if (each >= 0) (void)::close(each);
  }
  if (process_ > 0) {
    (void)::kill(-process_, SIGKILL);
    int ended = 0;
    (void)::waitpid(process_, &ended, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(profile_, ignored);
}

json browser::next_message() {
  for (std::size_t end = received_.find('\0'); end == std::string::npos; end = received_.find('\0')) {
    pollfd wait{.fd = from_, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, answer_ms) <= 0) throw browser_failed{"the browser does not answer"};
    std::array<char, 65536> piece{};
    const ssize_t got = ::read(from_, piece.data(), piece.size());
    if (got <= 0) throw browser_failed{"the browser has ended"};
    received_.append(piece.data(), static_cast<std::size_t>(got));
  }
  const std::size_t end = received_.find('\0');
  json out = json::parse(received_.substr(0, end));
  received_.erase(0, end + 1);
  return out;
}

void browser::note(const json& event) {
  const std::string method = event.value("method", "");
  const json& given = event.contains("params") ? event["params"] : json::object();
  if (method == "Runtime.exceptionThrown") complaints_.push_back(given["exceptionDetails"].dump());
  if (method == "Runtime.consoleAPICalled" && (given["type"] == "error" || given["type"] == "warning")) {
    complaints_.push_back(given["args"].dump());
  }
  if (method == "Log.entryAdded" && (given["entry"]["level"] == "error" || given["entry"]["level"] == "warning")) {
    complaints_.push_back(given["entry"]["text"]);
  }
  if (method == "Network.requestWillBeSent") requests_.push_back(given["request"]["url"]);
}

json browser::call(const std::string& method, const json& parameters) {
  const int id = ++calls_;
  json message{{"id", id}, {"method", method}, {"params", parameters}};
  if (!session_.empty()) message["sessionId"] = session_;
  std::string text = message.dump();
  text += '\0';
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t put = ::write(to_, text.data() + sent, text.size() - sent);
    if (put <= 0) throw browser_failed{"the browser has ended"};
    sent += static_cast<std::size_t>(put);
  }
  for (;;) {
    json got = next_message();
    if (got.value("id", 0) != id) {
      note(got);
      continue;
    }
    if (got.contains("error")) throw browser_failed{method + ": " + got["error"].dump()};
    return got["result"];
  }
}

void browser::resize(int width, int height, bool phone) {
  call("Emulation.setDeviceMetricsOverride",
       {{"width", width}, {"height", height}, {"deviceScaleFactor", phone ? 2 : 1}, {"mobile", phone}});
  call("Emulation.setTouchEmulationEnabled", {{"enabled", phone}});
}

void browser::prefer_dark(bool dark) {
  call("Emulation.setEmulatedMedia",
       {{"features", {{{"name", "prefers-color-scheme"}, {"value", dark ? "dark" : "light"}}}}});
}

void browser::open(const std::filesystem::path& file) {
  complaints_.clear();
  requests_.clear();
  call("Page.navigate", {{"url", "file://" + std::filesystem::absolute(file).string()}});
  for (int tries = 0; tries < 300; ++tries) {
    if (evaluate("document.readyState === 'complete' && 'ready' in document.documentElement.dataset")) return;
    if (!complaints_.empty()) return;
    ::usleep(100'000);
  }
  throw browser_failed{file.string() + " was not ready after 30 s"};
}

json browser::evaluate(const std::string& expression) {
  const json got =
      call("Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
  if (got.contains("exceptionDetails")) throw browser_failed{expression + ": " + got["exceptionDetails"].dump()};
  return got["result"].contains("value") ? got["result"]["value"] : json(nullptr);
}

void browser::press(const std::string& key) {
  constexpr std::array<std::pair<std::string_view, int>, 6> codes{
      {{"ArrowRight", 39}, {"ArrowLeft", 37}, {"Home", 36}, {"End", 35}, {"Tab", 9}, {"Enter", 13}}};
  int code = 0;
  for (const auto& [name, number] : codes) {
    if (name == key) code = number;
  }
  json event{{"key", key}, {"code", key}, {"windowsVirtualKeyCode", code}};
  event["type"] = "keyDown";
  if (key == "Enter") event["text"] = "\r";
  call("Input.dispatchKeyEvent", event);
  event["type"] = "keyUp";
  event.erase("text");
  call("Input.dispatchKeyEvent", event);
}

void browser::move_pointer(double x, double y) {
  call("Input.dispatchMouseEvent", {{"type", "mouseMoved"}, {"x", x}, {"y", y}});
}

void browser::tap(double x, double y) {
  call("Input.dispatchTouchEvent", {{"type", "touchStart"}, {"touchPoints", {{{"x", x}, {"y", y}}}}});
  call("Input.dispatchTouchEvent", {{"type", "touchEnd"}, {"touchPoints", json::array()}});
}

void browser::save_picture(const std::filesystem::path& file) {
  const json size = call("Page.getLayoutMetrics")["cssContentSize"];
  const json got =
      call("Page.captureScreenshot",
           {{"captureBeyondViewport", true},
            {"clip", {{"x", 0}, {"y", 0}, {"width", size["width"]}, {"height", size["height"]}, {"scale", 1}}}});
  const std::string bytes = decode_base64(got["data"]);
  std::ofstream{file, std::ios::binary}.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace gpumem::page_test
