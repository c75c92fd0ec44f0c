// Where it is written what to do about an incident: the pages of dashboards/runbooks, which are served beside this one.
const SHARED = {integrity: 'ReductionMismatch', accounting: 'ReductionMismatch'};

export function runbookOf(condition) {
  const name = `Lossgauge${SHARED[condition] ?? condition.replace(/(?:^|_)([a-z])/g, (_, letter) => letter.toUpperCase())}`;
  return {name, href: `/page/runbooks/${encodeURIComponent(name)}.md`};
}
