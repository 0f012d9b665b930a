// The page at /: its routes and headers, and that it contains nothing that its own policy forbids.
#include "server/http/playground.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const http::PlaygroundFile& file) {
  return {reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()};
}

// Files of third_party/, which name other hosts and markup in comments and in code that the page does not call.
bool is_vendored(const http::PlaygroundFile& file) { return file.name == "marked.esm.js"; }

TEST(Playground, ServesThePageWithoutAKey) {
  TestServer server({.api_key = "secret"});
  auto client = server.client();
  const auto page = client.Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_TRUE(page->body.starts_with("<!doctype html>")) << page->body.substr(0, 40);
  EXPECT_EQ(client.Head("/")->status, 200);
  EXPECT_EQ(client.Post("/", "{}", "application/json")->status, 405);
  EXPECT_EQ(client.Get("/playground/index.html")->status, 404);
  EXPECT_EQ(client.Get("/playground/nothing.js")->status, 404);
  EXPECT_EQ(client.Get("/playground/../../etc/passwd")->status, 404);
}

TEST(Playground, EveryFileHasItsTypeAndTheHeaders) {
  const std::map<std::string, std::string> types = {{".html", "text/html; charset=utf-8"},
                                                    {".css", "text/css; charset=utf-8"},
                                                    {".js", "text/javascript; charset=utf-8"},
                                                    {".svg", "image/svg+xml"}};
  TestServer server;
  auto client = server.client();
  for (const http::PlaygroundFile& file : http::playground_files()) {
    const std::string name(file.name);
    const auto result = client.Get(name == "index.html" ? "/" : "/playground/" + name);
    ASSERT_TRUE(result) << name;
    EXPECT_EQ(result->status, 200) << name;
    EXPECT_EQ(result->body, text_of(file)) << name;
    EXPECT_EQ(result->get_header_value("Content-Type"), types.at(name.substr(name.rfind('.'))));
    EXPECT_EQ(result->get_header_value("X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(result->get_header_value("Referrer-Policy"), "no-referrer");
    const std::string policy = result->get_header_value("Content-Security-Policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
    EXPECT_THAT(policy, HasSubstr("script-src 'self'"));
    EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'"));
    EXPECT_THAT(policy, HasSubstr("require-trusted-types-for 'script'"));
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  }
}

TEST(Playground, LinksToFilesThatAreServedAndToNothingElse) {
  TestServer server;
  auto client = server.client();
  const std::regex link(R"re((?:src|href)="([^"]*)"|from '([^']*)')re");
  int links = 0;
  for (const http::PlaygroundFile& file : http::playground_files()) {
    if (is_vendored(file)) continue;
    const std::string text = text_of(file);
    EXPECT_THAT(text, Not(HasSubstr("https://"))) << file.name;
    EXPECT_FALSE(std::regex_search(text, std::regex(R"((get|post|fetch)\(['`"]/)")))
        << file.name << " asks for an absolute path";
    for (std::sregex_iterator found(text.begin(), text.end(), link), end; found != end; ++found, ++links) {
      std::string target = (*found)[1].matched ? (*found)[1] : (*found)[2];
      if (target.starts_with("#")) continue;
      // Links are relative, so that the page works below a path of a reverse proxy.
      EXPECT_FALSE(target.starts_with("/")) << file.name << " links to " << target;
      target = (target.starts_with("./") ? "/playground/" + target.substr(2) : "/" + target);
      const auto result = client.Get(target);
      ASSERT_TRUE(result) << target;
      EXPECT_EQ(result->status, 200) << file.name << " links to " << target;
    }
  }
  EXPECT_GE(links, 4 + 10);  // links of the page and of its modules
}

// The Content-Security-Policy would silently block these.
TEST(Playground, HoldsNoInlineScriptOrStyle) {
  for (const http::PlaygroundFile& file : http::playground_files()) {
    if (is_vendored(file)) continue;
    const std::string text = text_of(file);
    EXPECT_FALSE(std::regex_search(text, std::regex(R"(\sstyle=|\son[a-z]+="|<style|<script>|innerHTML|javascript:)")))
        << file.name;
  }
}

}  // namespace
}  // namespace smartkv::test
