package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	tagged   = regexp.MustCompile(`^v?([0-9]+(?:\.[0-9]+)+)(?:-([a-z][a-z0-9.]*))?(?:-([0-9]+)-g([0-9a-f]+))?$`)
	untagged = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
)

// packageVersion is the version of packages, which sorts as the commits do, from what `git describe --tags --always
// --dirty` says of a commit and its time: 1.2.3, 1.2.3~rc1 before it, 1.2.3+5.gabcdef0 after it, and where there is no
// tag 0.0.0 with the commit's time. It fails where that is no version.
func packageVersion(described string, date time.Time) (string, error) {
	commit, dirty := strings.CutSuffix(described, "-dirty")
	var v string
	switch m := tagged.FindStringSubmatch(commit); {
	case m != nil:
		v = m[1]
		if m[2] != "" {
			v += "~" + m[2]
		}
		if m[3] != "" {
			v += "+" + m[3] + ".g" + m[4]
		}
	case untagged.MatchString(commit):
		v = "0.0.0+" + date.UTC().Format("20060102150405") + "." + commit
	default:
		return "", fmt.Errorf("%q is no version for packages: build a clone of git's, or say VERSION=1.2.3", described)
	}
	switch {
	case !dirty:
	case strings.Contains(v, "+"):
		v += ".dirty"
	default:
		v += "+dirty"
	}
	return v, nil
}

// sourceDate is the time that all files get: SOURCE_DATE_EPOCH, or that of the last commit. It fails where there is
// neither.
func sourceDate(top string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		out, err := exec.Command("git", "-c", "safe.directory=*", "-C", top, "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("the time of the last commit is not known (git log in %s: %w): say SOURCE_DATE_EPOCH=SECONDS", top, err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q, which are no seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
