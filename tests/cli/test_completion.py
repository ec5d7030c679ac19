"""`completion`: what bash, zsh and fish offer for the beginning of a command line, asked of the shells themselves."""

import os
import re
import select
import shutil
import subprocess
import time
import unittest

from tool import TOOL, ToolCase

ASK_BASH = r'''
source ./script
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_flashattn
printf '%s\n' "${COMPREPLY[@]}"
'''


class Completion(ToolCase):
    def script(self, shell):
        (self.folder / "script").write_text(self.output_of("completion", shell))

    def ask(self, *command):
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split("\n")[:-1]

    def bash(self, *words):
        return set(self.ask("bash", "--norc", "-c", ASK_BASH, "bash", "flashattn", *words)) - {""}

    def test_bash(self):
        self.script("bash")
        self.assertEqual(self.bash("be"), {"bench"})
        self.assertIn("--version", self.bash("--"))
        self.assertEqual(self.bash("bench", "--sui"), {"--suite"})
        self.assertEqual(self.bash("bench", "--suite", "de"), {"decode"})
        self.assertEqual(self.bash("bench", "--suite", "=", "de"), {"decode"})
        self.assertEqual(self.bash("bench", "--suite", "="), self.bash("bench", "--suite", ""))
        self.assertEqual(self.bash("bench", "--rounds", ""), set())  # a number: nothing can be said
        self.assertEqual(self.bash("completion", ""), {"bash", "zsh", "fish", "-h", "--help"})
        self.assertNotIn("script", self.bash("verify", ""))
        for words in (["run", "--q", "scr"], ["run", "--q", "=", "scr"], ["solve", "scr"]):
            self.assertEqual(self.bash(*words), {"script"})

    def test_every_command_and_option(self):
        self.script("bash")
        said = re.compile(r"^  ((?:-\w,)?--[\w-]+)", re.M)
        commands = self.bash("") - {"-h", "--help", "-V", "--version"}
        self.assertEqual(commands, set(re.findall(r"^  (\w+) ", self.output_of("--help").split("Subcommands:")[1], re.M)))
        for command in commands:
            options = {o for names in said.findall(self.output_of(command, "--help")) for o in names.split(",")}
            self.assertLessEqual({"-h", "--help"}, options)
            self.assertEqual({w for w in self.bash(command, "") if w[0] == "-"}, options, command)

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish(self):
        self.script("fish")

        def fish(line):
            answer = self.ask("fish", "--no-config", "-c", "source ./script; complete -C $argv[1]", line)
            return {row.split("\t")[0] for row in answer}

        self.assertEqual(fish("flashattn be"), {"bench"})
        self.assertEqual(fish("flashattn bench --suite de"), {"decode"})
        self.assertEqual(fish("flashattn bench --sui"), {"--suite"})
        self.assertEqual(fish("flashattn completion "), {"bash", "fish", "zsh"})
        self.assertEqual(fish("flashattn run --q scr"), {"script"})
        self.assertEqual(fish("flashattn verify scr"), set())

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh(self):
        self.script("zsh")
        self.ask("zsh", "-n", "script")
        os.rename(self.folder / "script", self.folder / "_flashattn")
        try:
            terminal, its_end = os.openpty()
        except OSError as reason:  # a bare container may have no terminals to give
            self.skipTest(f"no terminal: {reason}")
        environment = {**os.environ, "PS1": "> ", "TERM": "dumb", "HOME": str(self.folder)}
        streams = {"stdin": its_end, "stdout": its_end, "stderr": its_end}
        with subprocess.Popen(["zsh", "-f", "-i"], cwd=self.folder, env=environment, **streams) as zsh:
            os.close(its_end)

            def answer(line, wanted):
                """Does zsh print it once the line and a tab are typed?"""
                os.write(terminal, line.encode())
                seen, end = "", time.monotonic() + 30
                while not re.search(wanted, seen) and time.monotonic() < end:
                    if select.select([terminal], [], [], 1)[0]:
                        seen += os.read(terminal, 65536).decode(errors="replace")
                self.assertRegex(seen, wanted)

            try:
                answer("fpath=($PWD $fpath); autoload -U compinit; compinit -u -D; echo rea''dy\n", "ready")
                answer("flashattn ben\t", r"ben\x07?ch ")
                answer("--suite=dec\t", r"dec\x07?ode ")
                answer("--roun\t", r"roun\x07?ds")
            finally:
                zsh.kill()
        os.close(terminal)


if __name__ == "__main__":
    unittest.main()
